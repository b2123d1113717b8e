"""`gpumem accuracy`: the laboratory's tables, where the laboratory is."""

from __future__ import annotations

import argparse
import importlib
from typing import List

from slurm_gpumem.errors import UsageError

_LAB = "slurm_gpumem.lab"
_ELSEWHERE = """\
gpumem accuracy scores every estimator on measured training runs. The runs and the code that scores are not
part of the installed package. Clone the git repository slurm_gpumem and run in it: make accuracy"""


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    try:
        command = importlib.import_module(f"{_LAB}.score.command")
    except ModuleNotFoundError as error:
        if not str(error.name).startswith(_LAB):
            raise
        if {"-h", "--help"} & set(argv):
            _parser().print_help()
            return 0
        raise UsageError(_ELSEWHERE) from None
    code: int = command.main(argv)
    return code


def _parser() -> argparse.ArgumentParser:
    """What the installed package shows of it; the laboratory has the options."""
    return argparse.ArgumentParser(prog="gpumem accuracy", description=_ELSEWHERE)
