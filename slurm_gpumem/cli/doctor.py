"""`gpumem doctor`: is this cluster set up to share GPUs safely? Answers like a Nagios check."""

from __future__ import annotations

import argparse
import json
from typing import List

from slurm_gpumem.site.doctor import examine_cluster


def main(argv: List[str]) -> int:
    """Entry point of the subcommand: 0 ok, 1 warning, 2 critical, 3 unknown."""
    parser = argparse.ArgumentParser(
        prog="gpumem doctor",
        description=__doc__,
        epilog="Exit codes: 0 ok, 1 warning, 2 critical, 3 unknown.",
    )
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="CHECK",
        help="leave out a finding that the site knows and accepts, like mixed-jobs; may be repeated",
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    diagnosis = examine_cluster().without(args.ignore)
    print(json.dumps(diagnosis.as_json(), indent=2) if args.json else diagnosis.text())
    return int(diagnosis.severity)
