"""What Slurm's command-line filter hands over of a submission, and the script that it names."""

from __future__ import annotations

import json
import os
import stat
from typing import Dict, List, NamedTuple, Optional

from slurm_gpumem.errors import UsageError
from slurm_gpumem.slurm.submit.sbatch import SBATCH
from slurm_gpumem.slurm.submit.sbatch_options import CommandLine, Option, read_command_line, sbatch_table
from slurm_gpumem.slurm.submit.script import MAX_BYTES, BatchScript

_MOST_BYTES = 1 << 20


class Filtered(NamedTuple):
    """A submission as sbatch, srun or salloc understood it, before the controller hears of it."""

    program: str
    line: CommandLine
    script: Optional[BatchScript]
    """None with --wrap, srun and salloc, and where it came through a pipe, which nobody can read again."""


def read_filtered(text: bytes, program: str, submitter: int, stdin: Optional[int]) -> Filtered:
    """Take apart the options in Slurm's JSON; `submitter` is its process, `stdin` what that one reads."""
    try:
        found = json.loads(os.fsdecode(text[:_MOST_BYTES]))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the options that Slurm handed over are no JSON: {error}") from None
    words = found.pop("argv", []) if isinstance(found, dict) else None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UsageError("the options that Slurm handed over are not as its filter describes them")
    options = tuple(_option(name, value) for name, value in found.items() if isinstance(value, str))
    script = None
    if program == SBATCH and "wrap" not in found:
        script = _script(words[0]) if words else _from_standard_input(stdin)
    line = CommandLine(
        options,
        words[0] if words else None,
        tuple(words[1:]),
        het_job=_several_components(program, submitter),
    )
    return Filtered(program, line, script)


def _option(name: str, value: str) -> Option:
    if name == "gres":
        # Slurm writes gres:gpu:1 up to 22.05, gres/gpu:1 later.
        value = ",".join(item[5:] if item[:5] in ("gres:", "gres/") else item for item in value.split(","))
    return Option(name, value, (f"--{name}={value}",))


def _script(path: str) -> Optional[BatchScript]:
    """The script, which sbatch has read; None where it cannot be read again."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        near = os.path.relpath(path)
        return BatchScript(near if len(near) < len(path) else path, path, file.read(MAX_BYTES + 1))


def _from_standard_input(fd: Optional[int]) -> Optional[BatchScript]:
    """The script of `sbatch < job.sh`: the file is still there, however far sbatch has read it."""
    if fd is None:
        return None
    try:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
        return BatchScript("standard input", None, os.pread(fd, MAX_BYTES + 1, 0)) if regular else None
    except OSError:
        return None


def _several_components(program: str, submitter: int) -> bool:
    """Whether this is one component of a heterogeneous job: the options of one say nothing of the others."""
    try:
        with open(f"/proc/{submitter}/cmdline", "rb") as file:
            words: List[str] = [os.fsdecode(word) for word in file.read().split(b"\0")[1:-1]]
    except OSError:
        return False
    # srun looks for the next component behind its command, too.
    return read_command_line(words, sbatch_table()).het_job if program == SBATCH else ":" in words


def percent(value: str) -> str:
    """A value that stands on one line of the answer."""
    return "".join(f"%{ord(char):02X}" if char == "%" or char < " " else char for char in value)


def answer(changes: Dict[str, str]) -> bytes:
    """What the filter sets, in this order; "" takes an option back. Without the last line nothing counts."""
    lines = [f"{name}={percent(value)}" for name, value in changes.items()]
    return os.fsencode("\n".join([*lines, "done", ""]))
