"""What `gpumem setup` asks on a terminal: nothing that an option or the site's gpumem.toml has answered."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import List, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.site.setup.render import WAYS_TO_SHARE
from slurm_gpumem.site.setup.setup import SetupOptions
from slurm_gpumem.site.snapshot import Snapshot

_MODES: Mapping[str, Tuple[str, ...]] = {
    "observe": ("estimate and record jobs, change none; no daemon is restarted",),
    "opt-in": ("jobs share whose script asks for it (#GPUMEM)",),
    "known": ("also jobs whose script ran before",),
    "on": ("also first runs, where gpumem.toml says how",),
}


def asked(options: SetupOptions, snapshot: Snapshot) -> SetupOptions:
    """The options with what the admin answered."""
    if options.mode is None and "mode" not in snapshot.policy:
        options = replace(options, mode=_choice("Which jobs are to share GPUs?", _MODES))
    if options.mode == "observe":
        return options
    names = tuple(part["PartitionName"] for part in snapshot.partitions if _has_gpus(part, snapshot))
    if not options.partitions and options.mode and len(names) > 1:
        options = replace(options, partitions=_partitions(names))
    if options.mps is None and "mps" not in snapshot.tables.get("node", {}):
        options = replace(options, mps=_choice("How are jobs on one GPU to run?", WAYS_TO_SHARE))
    return options


def confirmed(question: str) -> bool:
    """Whether somebody at a terminal says yes; without one, whoever gave the option has said it."""
    return not on_terminal() or _answer(f"{question} [y/N] ").lower() in ("y", "yes")


def on_terminal() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _has_gpus(partition: Mapping[str, str], snapshot: Snapshot) -> bool:
    name = partition["PartitionName"]
    nodes = [node for node in snapshot.nodes if name in node.get("Partitions", "").split(",")]
    return any("gpu:" in node.get("Gres", "") for node in nodes)


def _choice(question: str, choices: Mapping[str, Sequence[str]]) -> str:
    lines: List[str] = [question]
    names = list(choices)
    for number, (name, about) in enumerate(choices.items(), 1):
        default = " (default)" if number == 1 else ""
        lines += [f"  {number}  {name}{default}: {about[0]}", *(f"     {line}" for line in about[1:])]
    print("\n".join(lines), file=sys.stderr)
    while True:
        given = _answer(f"1 to {len(names)}: ") or "1"
        if given in names:
            return given
        if given.isdecimal() and 1 <= int(given) <= len(names):
            return names[int(given) - 1]


def _partitions(names: Sequence[str]) -> Tuple[str, ...]:
    while True:
        given = _answer(f"Which partitions? {', '.join(names)} (default: all) ").replace(",", " ").split()
        if set(given) <= set(names):
            return tuple(given)


def _answer(question: str) -> str:
    print(question, end="", file=sys.stderr, flush=True)
    line: Optional[str] = sys.stdin.readline()
    if not line:
        raise UsageError("no answer; --mode, --partition and --mps say the same. Nothing was changed")
    return line.strip()
