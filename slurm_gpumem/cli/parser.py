"""argparse, with errors of one line: what was wrong, and what was probably meant."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any, NoReturn

from slurm_gpumem.errors import UsageError

_TAKES_SUMMARIES = ("gpumem estimate", "gpumem fit", "gpumem why")
_OF_SUMMARIZE = (
    "--loss", "--channels-last", "--set", "--head", "--batch-callable", "--target", "--step-callable",
    "--eval", "--time-limit", "--memory-limit", "--python",
)  # fmt: skip
"""Options of code that only the command that traces it has."""


class Parser(argparse.ArgumentParser):
    """For every command; those of subcommands are made of it, too."""

    def error(self, message: str) -> NoReturn:
        """Instead of the whole usage."""
        meant = self._meant(message) or f"; {self.prog} --help lists what it takes"
        raise UsageError(f"{self.prog}: {message}{meant}")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Help that cannot be written is an error like any other; argparse says nothing of it."""
        (file or sys.stderr).write(message)

    def _meant(self, message: str) -> str:
        from slurm_gpumem.text import near_names

        unknown = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        if unknown is None:
            return ""
        if unknown.group(1) in _OF_SUMMARIZE and self.prog in _TAKES_SUMMARIES:
            return f"; gpumem summarize takes {unknown.group(1)}: write a summary with -o, and name that here"
        known = [name for name in self._option_string_actions if name.startswith("--")]
        near = near_names(unknown.group(1)[2:], [name[2:] for name in known])
        return f". Did you mean --{near[0]}?" if near else ""
