"""`gpumem devcluster`: a real Slurm with pretended nodes and GPUs on this machine."""

from __future__ import annotations

import argparse
import re
import shlex
import time
from pathlib import Path
from typing import List, Sequence

from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.devcluster import cluster, processes
from slurm_gpumem.devcluster.spec import ClusterSpec, NodeSpec, Undivided, default_nodes, default_state
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.gpus import closest_gpu, gpu_in
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.terminal.say import say
from slurm_gpumem.text import count
from slurm_gpumem.units import format_mib, parse_mib

_SHARED = re.compile(r"([0-9]+)x([^:]+):(.+)")
_UNDIVIDED = re.compile(r"([0-9]+)x([^:]+)")


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    # Slurm changes its working folder: paths in its files must be absolute.
    args.state = Path(args.state).absolute()
    code: int = args.run(args)
    return code


def _up(args: argparse.Namespace) -> int:
    started = time.monotonic()
    running = cluster.up(_spec(args))
    took = time.monotonic() - started
    print(f"dev cluster up in {took:.1f} s: {_describe(running.spec.nodes)}")
    print(f'use it:  eval "$(gpumem devcluster env{_state_option(args.state)})"')
    if running.spec.hooks:
        print("look:    gpumem report, gpumem top; the hooks measure every job on a GPU")
    print(f"stop it: gpumem devcluster down{_state_option(args.state)}")
    return 0


def _status(args: argparse.Namespace) -> int:
    running = cluster.find(args.state)
    stopped = False
    for process in running.processes():
        alive = processes.alive(process)
        stopped = stopped or not alive
        print(f"{process.name:<12} {'running' if alive else 'stopped':<8} pid {process.pid}")
    print(running.node_table(), end="")
    return 1 if stopped else 0


def _env(args: argparse.Namespace) -> int:
    for key, value in cluster.find(args.state).env.items():
        print(f"export {key}={shlex.quote(value)}")
    return 0


def _down(args: argparse.Namespace) -> int:
    killed = cluster.down(args.state)
    if killed:
        say(f"had to be killed: {', '.join(process.name for process in killed)}")
    print("dev cluster down")
    return 0


def _spec(args: argparse.Namespace) -> ClusterSpec:
    if args.nodes < 1:
        raise UsageError(f"--nodes {args.nodes}: a cluster needs at least one node")
    nodes = tuple(_node(text) for text in args.node) or default_nodes(
        args.nodes, args.gpus_per_node, args.gpu_type, parse_mib(args.gpu_memory, default_unit="g")
    )
    return ClusterSpec(
        nodes=nodes,
        gres=args.gres,
        accounting=args.accounting,
        job_submit_lua=None if args.job_submit is None else str(Path(args.job_submit).absolute()),
        cli_filter=args.cli_filter,
        hooks=args.hooks,
        extra_conf=tuple(args.conf),
        state=args.state,
        slurm_root=None if args.slurm_root is None else Path(args.slurm_root).absolute(),
    )


def _node(text: str) -> NodeSpec:
    """ "n1=2xh100:80G" has shares, "n1=3x1g.18gb+1x2g.35gb" has none, "n1=1xh200:139G+3x1g.18gb" has both."""
    name, _, gpus = text.partition("=")
    first, *rest = gpus.split("+")
    shared = _SHARED.fullmatch(first)
    undivided = [_UNDIVIDED.fullmatch(found) for found in (rest if shared else [first, *rest])]
    instances = tuple(_undivided(found[2], int(found[1])) for found in undivided if found)
    if not name or len(instances) < len(undivided):
        raise UsageError(f"--node {text!r}: write it like big=2xh100:80G (name, GPUs, type, memory of each)")
    if not shared:
        return NodeSpec(name, gpus=0, instances=instances)
    number, gpu_type, memory = shared.groups()
    return NodeSpec(name, int(number), gpu_type, parse_mib(memory, default_unit="g"), instances=instances)


def _undivided(gpu_type: str, number: int) -> Undivided:
    profile = profile_name(gpu_type) or ""
    memory = closest_gpu(gpu_type, None).usable_mib
    return Undivided(gpu_type, number, memory, profile, gpu_in(gpu_type) if profile else "")


def _describe(nodes: Sequence[NodeSpec]) -> str:
    """ "2 nodes with 4 stand-in GPUs each (a100, 40.0 GiB)", or each node by itself where they differ."""
    different = {(node.gpus, node.gpu_type, node.gpu_memory_mib) for node in nodes}
    if any(node.instances for node in nodes):
        listed = (f"{node.name} with {node.devices}" for node in nodes)
        return f"{count(len(nodes), 'node')} with stand-in GPUs: {', '.join(listed)}"
    if len(different) == 1:
        each = "" if len(nodes) == 1 else " each"
        (gpus, gpu_type, memory) = different.pop()
        return (
            f"{count(len(nodes), 'node')} with {gpus} stand-in GPUs{each} ({gpu_type}, {format_mib(memory)})"
        )
    listed = (f"{n.name} with {n.gpus} {n.gpu_type} of {format_mib(n.gpu_memory_mib)}" for n in nodes)
    return f"{len(nodes)} nodes with stand-in GPUs: {', '.join(listed)}"


def _state_option(state: Path) -> str:
    return "" if state == default_state() else f" --state {shlex.quote(str(state))}"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="gpumem devcluster", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="up|status|env|down")
    common = Parser(add_help=False)
    common.add_argument(
        "--state",
        metavar="DIR",
        default=str(default_state()),
        help="folder for everything of this cluster (default %(default)s)",
    )
    up = actions.add_parser("up", parents=[common], help="start a cluster")
    up.add_argument("--nodes", type=int, default=2, help="how many nodes (default 2)")
    up.add_argument("--gpus-per-node", type=int, default=4, help="stand-in GPUs of each (default 4)")
    up.add_argument("--gpu-memory", default="40G", metavar="SIZE", help="memory of each GPU (default 40G)")
    up.add_argument("--gpu-type", default="a100", metavar="TYPE", help="Slurm's type for them (default a100)")
    up.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="NAME=COUNTxTYPE:SIZE",
        help="a node of its own kind, such as big=2xh100:80G, or, not divided, mig=4x1g.18gb+1x3g.71gb; "
        "repeatable, instead of the four options above",
    )
    up.add_argument("--gres", default="shard", choices=["shard", "mps"], help="what GPUs are shared by")
    up.add_argument("--accounting", action="store_true", help="with MariaDB and slurmdbd")
    up.add_argument("--job-submit", metavar="FILE", help="a job_submit.lua to run at every submission")
    up.add_argument("--cli-filter", action="store_true", help="plain sbatch asks for shares, too")
    up.add_argument("--hooks", action="store_true", help="with the nodes' hooks, for gpumem report and top")
    up.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a line for slurm.conf; repeatable"
    )
    up.add_argument("--slurm-root", metavar="DIR", help="run the Slurm in this tree, not the system's")
    up.set_defaults(run=_up)
    for name, action, what in (
        ("status", _status, "show its daemons and nodes"),
        ("env", _env, "print the exports that make a shell use it"),
        ("down", _down, "stop it"),
    ):
        actions.add_parser(name, parents=[common], help=what).set_defaults(run=action)
    return parser
