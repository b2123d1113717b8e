"""The batch size that a job's commands name, or that the Python files which they run take by default."""

from __future__ import annotations

import os
import re
from typing import List, NamedTuple, Optional, Sequence, Set, Tuple

from slurm_gpumem.launchers import LAUNCHERS

Commands = Sequence[Tuple[str, str]]
"""Lines that run something, each with where it stands."""
# Patterns are compiled where they are used: most jobs need none of them.
_NAMED = (
    r"(?<![\w-])(--(?:per[-_]device[-_])?(?:train[-_])?(?:batch[-_]?size|bs)[= ]|[\w.]*batch_size=|-bs? +)"
    r"([^\s;|&]+)"
)
"""As training scripts take it: --batch-size 256, --per_device_train_batch_size=8, batch_size=$BS, -b 8."""
_RUNS_PYTHON = "|".join([r"python|\.py\b", *(one.name for one in LAUNCHERS if one.marks_python)])
"""Only there -b is a batch."""
_OF_OTHERS = r"eval|valid|val_|test|global|total|effective|micro|mini"
"""batch_size= behind such a word is not that of a training step."""
_ASSIGNED = r"(?m)^[ \t]*(?:export[ \t]+)?(\w+)=[\"']?([0-9]+)[\"']?[ \t]*(?:#.*)?$"
PYTHON_FILE = r"[\w./~-]+\.py\b"
_DEFAULT = (
    r"(?m)^[^#\n]*\badd_argument\([^()]*?[\"']--(?:train[-_])?(?:batch[-_]?size|bs)[\"']"
    r"[^()]*?\bdefault\s*=\s*([0-9]+)\b"
)
_MAY_STATE_ONE = r"batch|(?<![\w-])--?(?:bs?|c|cfg|config\w*)\b"
"""A command with such a word may have another batch size than its script's default."""
_SOURCE_CAP = 1 << 20


class NamedBatch(NamedTuple):
    """A batch size that a command names."""

    where: str
    words: str
    size: Optional[int]
    """None where only the running script knows it."""


def named_batches(commands: Commands, script: str) -> List[NamedBatch]:
    """Every batch size of a training step that the commands of this script name."""
    found = []
    for where, line in commands:
        for match in re.finditer(_NAMED, line):
            is_batch = match[1][1] == "-" or "=" in match[1] or re.search(_RUNS_PYTHON, line)
            if is_batch and not re.search(_OF_OTHERS, match[1]):
                found.append(NamedBatch(where, match[0], _number(match[2], script)))
    return found


def the_batch(commands: Commands, script: str) -> Optional[NamedBatch]:
    """The job's one batch size, as its commands or a default say; None where none or several are known."""
    named = named_batches(commands, script)
    if named:
        return named[0] if named[0].size and len({one.size for one in named}) == 1 else None
    if any(re.search(_MAY_STATE_ONE, line) for _, line in commands):
        return None
    files = [name for _, line in commands for name in re.findall(PYTHON_FILE, line)]
    defaults = [(name, int(size)) for name in files for size in re.findall(_DEFAULT, source_text(name))]
    sizes: Set[int] = {size for _, size in defaults}
    if len(sizes) != 1 or 0 in sizes:
        return None
    name, size = defaults[0]
    return NamedBatch(f"{os.path.basename(name)}'s default", f"default={size}", size)


def source_text(name: str) -> str:
    """The text of a Python file that a job runs; "" where it is not here, or not ours to read."""
    try:
        with open(os.path.expanduser(name), "rb") as file:
            return file.read(_SOURCE_CAP).decode("utf-8", "replace")
    except OSError:
        return ""  # the job may find it where it runs


def _number(text: str, script: str) -> Optional[int]:
    """A number, or the one that the script gives a variable; None where it gives none, or several."""
    text = text.strip("\"'")
    if text.isdigit():
        return int(text)
    values = {value for name, value in re.findall(_ASSIGNED, script) if f"${name}" == text.translate(_BRACES)}
    return int(values.pop()) if len(values) == 1 else None


_BRACES = {ord("{"): None, ord("}"): None}
