"""Slurm's short form of node names: n[1-3],m7."""

from __future__ import annotations

import re
from typing import Dict, List, Sequence

from slurm_gpumem.errors import UsageError

_MOST_NODES = 65_536
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)


def fold_names(names: Sequence[str]) -> str:
    """Slurm's short form of node names: n1, n2, n3, m7 are "n[1-3],m7"."""
    stems: Dict[str, List[str]] = {}
    for name in names:
        stem = name.rstrip("0123456789")
        stems.setdefault(stem, []).append(name[len(stem) :])
    folded = []
    for stem, numbers in stems.items():
        if len(numbers) == 1:
            folded.append(stem + numbers[0])
            continue
        folded += [stem] * numbers.count("")
        ranges = _ranges(sorted((n for n in numbers if n), key=lambda n: (len(n), int(n))))
        if ranges:
            folded.append(f"{stem}[{','.join(ranges)}]")
    return ",".join(folded)


def expand_names(text: str) -> List[str]:
    """The node names of Slurm's short form: "n[1-3],m7" are n1, n2, n3, m7."""
    if text.count("[") != text.count("]"):
        raise UsageError(f"{text}: a bracket is open; node names are written like n[1-4,7]")
    found: List[str] = []
    for item in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        names = [""]
        for plain, inside in re.findall(r"([^\[]+)|\[([^\]]*)\]", item):
            ends = [plain] if plain else _numbers(inside)
            if len(names) * len(ends) > _MOST_NODES:
                raise UsageError(f"{text}: more than {_MOST_NODES:,} nodes")
            names = [name + end for name in names for end in ends]
        found += names
    return found


def _numbers(text: str) -> List[str]:
    """ "1-3,07" is 1, 2, 3, 07: a range keeps the width of its first number."""
    found = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (match[1], match[2] or match[1]) if match else ("", "")
        if not match or int(last) - int(first) > _MOST_NODES:
            raise UsageError(f"[{text}] is not a list of numbers like [1-4,7] in a node name")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def _ranges(numbers: Sequence[str]) -> List[str]:
    runs: List[List[str]] = []
    for number in numbers:
        follows = runs and int(number) == int(runs[-1][-1]) + 1 and len(number) == len(runs[-1][-1])
        # n9 and n10 may stand in one range; n09 and n010 may not.
        follows = follows or (runs and number[0] != "0" and int(number) == int(runs[-1][-1]) + 1)
        if follows:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
