"""`gpumem`: one command, its subcommands imported only when called."""

from __future__ import annotations

import importlib
import sys
from typing import List, Optional

from slurm_gpumem.terminal.say import run_command, run_program

COMMANDS = {
    "devcluster": ("slurm_gpumem.cli.commands.devcluster", "a real Slurm with stand-in GPUs on this machine"),
    "estimate": ("slurm_gpumem.cli.commands.estimate", "estimate a job's GPU memory from its model summary"),
    "trace": (
        "slurm_gpumem.cli.commands.trace",
        "run a training command as it is, without a GPU, and trace it",
    ),
    "summarize": (
        "slurm_gpumem.cli.commands.summarize",
        "trace a model's code, without a GPU, into a summary",
    ),
    "fit": ("slurm_gpumem.cli.commands.fit", "does it fit this GPU, and up to which batch size?"),
    "why": (
        "slurm_gpumem.cli.commands.why",
        "the peak explained: over time, by tensor, and what would lower it",
    ),
    "node": ("slurm_gpumem.cli.commands.node", "show which jobs share which GPU of this node"),
    "top": ("slurm_gpumem.cli.commands.top", "your running jobs: share, memory, activity, neighbours; live"),
    "report": (
        "slurm_gpumem.cli.commands.report",
        "what jobs were estimated to need, what they used, what it saved",
    ),
    "collect": ("slurm_gpumem.cli.commands.collect", "gather the nodes' job records, for gpumem report"),
    "calibrate": (
        "slurm_gpumem.cli.commands.calibrate",
        "measure this node's GPU and write the site's entry for it",
    ),
    "sitekit": (
        "slurm_gpumem.cli.commands.sitekit",
        "try what gpumem promises on this GPU, into one file",
    ),
    "recover": (
        "slurm_gpumem.cli.commands.recover",
        "finish requeues after out of memory that were interrupted",
    ),
    "setup": ("slurm_gpumem.cli.commands.setup", "the configuration that shares this site's GPUs, as a diff"),
    "what-if": (
        "slurm_gpumem.cli.commands.what_if",
        "what sharing would have done to the jobs that this site had",
    ),
    "docs": ("slurm_gpumem.cli.commands.docs", "the documentation, page by page, offline"),
    "doctor": ("slurm_gpumem.cli.commands.doctor", "check a running cluster's sharing, like a Nagios check"),
}


_OF_PROGRAMS = {"cli-filter": "slurm_gpumem.cli.cli_filter"}
"""Commands that nobody types."""
READERS = {
    "for your jobs": ("estimate", "trace", "summarize", "fit", "why", "top", "report", "docs"),
    "for admins": (
        "setup",
        "doctor",
        "what-if",
        "node",
        "collect",
        "recover",
        "calibrate",
        "sitekit",
    ),
    "for developers": ("devcluster",),
}
"""Every command, by whom it is for, in the order in which one meets them."""


_MEANT = {"largest": "fit", "max-batch": "fit", "explain": "why", "history": "report"}
"""Names that somebody may look for, and the command that does it."""


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point of `gpumem`."""
    if argv is None:
        run_program(lambda: _dispatch(sys.argv[1:]))
    return run_command(lambda: _dispatch(argv))


def _dispatch(args: List[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if args else 2
    if args[0] == "--version":
        from slurm_gpumem import __version__

        print(f"gpumem {__version__}")
        return 0
    if args[0] in _OF_PROGRAMS:
        hidden: int = importlib.import_module(_OF_PROGRAMS[args[0]]).main(args[1:])
        return hidden
    if args[0] not in COMMANDS:
        from slurm_gpumem.errors import UnknownNameError, UsageError

        if args[0] in _MEANT:
            raise UsageError(f"unknown command {args[0]!r}; did you mean {_MEANT[args[0]]!r}?")
        raise UnknownNameError("command", args[0], list(COMMANDS))
    if args[1:2] == ["--version"]:
        from slurm_gpumem import __version__

        print(f"gpumem {args[0]} {__version__}")
        return 0
    if args[0] == "report" and "--brief" in args:
        brief: int = importlib.import_module("slurm_gpumem.report.brief").main(args[1:])
        return brief
    module = importlib.import_module(COMMANDS[args[0]][0])
    code: int = module.main(args[1:])
    return code


def _usage() -> str:
    width = max(len(name) for name in COMMANDS)
    lines = ["usage: gpumem COMMAND [options]"]
    for reader, names in READERS.items():
        lines += ["", f"{reader}:", *(f"  {name:<{width}}  {COMMANDS[name][1]}" for name in names)]
    return "\n".join([*lines, "", "gpumem COMMAND --help says more. The documentation: gpumem docs"])
