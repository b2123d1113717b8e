"""`gpumem node status`: which jobs share which GPU of this node, and who uses what."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import List

from slurm_gpumem.node.config import load_node_config, run_dir, site_config_path
from slurm_gpumem.node.jobs import RunFolder


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    from slurm_gpumem.node.status import as_json, look, render

    folder, config = RunFolder(args.run_dir or run_dir()), load_node_config(site_config_path())
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    if args.json:
        print(json.dumps(as_json(look(folder, config))))
        return 0
    if not args.watch:
        print("\n".join(render(look(folder, config), utf8=utf8)))
        return 0
    while True:
        lines = render(look(folder, config), utf8=utf8)
        # Home, each line cleared to its end, the rest of the screen cleared: no flicker, works over ssh.
        sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()
        time.sleep(args.interval)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpumem node", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser("status", help="show this node's shared GPUs")
    status.add_argument("--watch", action="store_true", help="show it again and again until Ctrl-C")
    status.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="with --watch (default 1)"
    )
    status.add_argument("--json", action="store_true", help="for programs")
    status.add_argument("--run-dir", type=Path, help="the node's state folder (default /run/gpumem)")
    return parser
