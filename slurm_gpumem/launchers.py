"""Programs that start a script's Python, and what each part of the package knows of them: one table."""

from __future__ import annotations

from typing import NamedTuple, Tuple


class Launcher(NamedTuple):
    """A program that stands before a script in a command."""

    name: str
    processes: str = ""
    """A pattern for where its command says how many processes it starts."""
    of_all_nodes: bool = False
    """Whether that is the number on all nodes together, not on each."""
    marks_python: bool = False
    """Whether a line with its name runs Python: only there `-b` is a batch."""
    marks_environment: bool = False
    """Whether the folder of its bin/ is taken for the job's environment."""
    module: str = ""
    """The module in which a trace lets it start its first process only."""


LAUNCHERS: Tuple[Launcher, ...] = (
    Launcher(
        "torchrun",
        processes=r"--nproc[-_]per[-_]node[= ]+([0-9]+)\b",
        marks_python=True,
        marks_environment=True,
        module="torch.distributed.launcher.api",
    ),
    Launcher(
        "accelerate",
        processes=r"\baccelerate\b.*\s--num[-_]processes[= ]+([0-9]+)\b",
        of_all_nodes=True,
        marks_python=True,
        marks_environment=True,
        module="accelerate.commands.launch",
    ),
    Launcher(
        "deepspeed",
        processes=r"\bdeepspeed\b.*\s--num[-_]gpus[= ]+([0-9]+)\b",
        marks_python=True,
    ),
    Launcher("lightning"),
    Launcher("fabric"),
    Launcher("composer"),
    Launcher("ipython"),
)
"""All of them come first on the PATH of a script that is traced, so that their Python is the tracer's."""
