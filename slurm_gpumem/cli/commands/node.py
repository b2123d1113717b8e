"""`gpumem node status`: which jobs share which GPU of this node."""

from __future__ import annotations

import argparse
import json
import sys
from typing import List

from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.config.node import load_node_config, run_dir
from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.node.jobs import RunFolder


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    from slurm_gpumem.node.status import as_json, read_status, render

    folder, config = RunFolder(run_dir()), load_node_config(site_config_path())
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    if args.json:
        print(json.dumps(as_json(read_status(folder, config))))
        return 0
    print("\n".join(render(read_status(folder, config), utf8=utf8)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="gpumem node", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser("status", help="show this node's shared GPUs")
    status.add_argument("--json", action="store_true", help="for programs")
    return parser
