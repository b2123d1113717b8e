"""`gpumem node status|metrics`: which jobs share which GPU of this node, for people and for Prometheus."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import List, Optional

from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.config.node import NodeConfig, load_node_config, run_dir
from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.errors import UsageError
from slurm_gpumem.node.jobs import RunFolder


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    from slurm_gpumem.node.status import as_json, read_status, render

    folder, config = RunFolder(args.run_dir or run_dir()), load_node_config(site_config_path())
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    if args.command == "metrics":
        return _metrics(folder, config, args.output)
    if args.json:
        print(json.dumps(as_json(read_status(folder, config))))
        return 0
    print("\n".join(render(read_status(folder, config), utf8=utf8)))
    return 0


def _metrics(folder: RunFolder, config: NodeConfig, output: Optional[Path]) -> int:
    from slurm_gpumem.files import write_atomic
    from slurm_gpumem.formats.live import Live
    from slurm_gpumem.node.exporter import node_metrics
    from slurm_gpumem.node.status import read_status

    # A node where no shared job has run yet has metrics too: a timer may ask before the first one.
    live = read_status(folder, config).live if folder.root.is_dir() else Live()
    node = os.uname().nodename.partition(".")[0]
    text = node_metrics(folder, config, live._replace(node=live.node or node))
    if output is None:
        sys.stdout.write(text)
        return 0
    try:
        write_atomic(output, text)
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror}; node_exporter's textfile folder must exist") from None
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="gpumem node", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser("status", help="show this node's shared GPUs")
    status.add_argument("--json", action="store_true", help="for programs")
    metrics = commands.add_parser("metrics", help="the same for Prometheus, as text")
    metrics.add_argument(
        "-o", "--output", type=Path, metavar="FILE.prom", help="write it there in one step, not to stdout"
    )
    for command in (status, metrics):
        command.add_argument("--run-dir", type=Path, help="the node's state folder (default /run/gpumem)")
    return parser
