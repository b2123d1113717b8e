"""`gpumem accuracy`: the laboratory's tables, where the laboratory is."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import List

from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.data import package_folder
from slurm_gpumem.errors import UsageError

_ELSEWHERE = """\
gpumem accuracy scores every estimator on measured training runs. The runs and the code that scores are not
part of the installed package. Clone the git repository slurm_gpumem and run in it: make accuracy"""


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    beside = Path(package_folder("cli")).parents[1]
    if not (beside / "lab" / "score" / "command.py").is_file():
        if {"-h", "--help"} & set(argv):
            _parser().print_help()
            return 0
        raise UsageError(_ELSEWHERE)
    # The laboratory is not installed, not even by pip install -e.
    sys.path.insert(0, str(beside))
    code: int = importlib.import_module("lab.score.command").main(argv)
    return code


def _parser() -> argparse.ArgumentParser:
    """What the installed package shows of it; the laboratory has the options."""
    return Parser(prog="gpumem accuracy", description=_ELSEWHERE)
