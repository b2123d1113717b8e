"""Run a page's commands as a reader would: in one shell, in a folder with the examples, on a cluster."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Sequence, Tuple

from slurm_gpumem.devcluster.cluster import Cluster, up
from slurm_gpumem.devcluster.spec import ClusterSpec, NodeSpec, default_nodes
from slurm_gpumem.site.nodes import GpuGroup, NodeGroup
from slurm_gpumem.site.setup.plan import SitePlan
from slurm_gpumem.site.setup.render import lua_table
from slurm_gpumem.slurm.client import parse_version
from tests.docs.pages import Before, File, Part, Screen, Step, skipped
from tests.support.other_user import USER, own, user_python
from tests.support.waiting import remove_tree

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600
_END = "\x1e"
_SLURM = re.compile(r"\b(gpus\w+|sbatch|srun|scontrol|squeue|gpumem (?:report|doctor|setup|collect|node))\b")


def to_run(parts: Sequence[Part], *, slow: bool) -> List[Part]:
    """The parts, with the reason in those screens that cannot be run here."""
    return [_judged(part, slow) if isinstance(part, Screen) else part for part in parts]


def _judged(screen: Screen, slow: bool) -> Screen:
    missing = [name for name in screen.needs if importlib.util.find_spec(name) is None]
    if screen.not_run:
        return screen
    if missing:
        return skipped(screen, f"{', '.join(missing)} is not installed")
    return skipped(screen, "slow") if screen.slow and not slow else screen


def needs_slurm(parts: Sequence[Part]) -> bool:
    return any(_SLURM.search(command) for command in _commands(parts))


def _commands(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Before):
            yield part.command
        elif isinstance(part, Screen) and not part.not_run:
            yield from (step.command for step in part.steps)


def run_page(parts: Sequence[Part]) -> List[Tuple[Step, List[str]]]:
    """What each command of a page prints now, on its standard output and its standard error together."""
    steps = [step for part in parts if isinstance(part, Screen) and not part.not_run for step in part.steps]
    if not steps:
        return []
    with _desk(needs_slurm(parts)) as (folder, env):
        script = folder.parent / "page.sh"
        script.write_text(_script(parts), encoding="utf-8")
        done = subprocess.run(
            ["bash", str(script)],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    printed = done.stdout.decode(errors="replace").split(_END)
    # What hidden commands print is between a second pair of marks, at the odd places.
    outputs = printed[1::2]
    assert len(outputs) == len(steps), printed[-1]
    return [(step, output.split("\n")) for step, output in zip(steps, outputs)]


def _script(parts: Sequence[Part]) -> str:
    mark = "printf '\\036'"
    lines = ["exec 2>&1"]
    for part in parts:
        if isinstance(part, File):
            lines += [f"printf %s {shlex.quote(part.text)} > {shlex.quote(part.name)}"]
        elif isinstance(part, Before):
            lines += [part.command]
        elif not part.not_run:
            for step in part.steps:
                lines += [mark, step.command, mark]
    return "\n".join([*lines, ""])


@contextmanager
def _desk(with_slurm: bool) -> Iterator[Tuple[Path, Dict[str, str]]]:
    """A reader's folder with the examples, also under the name that they have in the repository."""
    root = Path(tempfile.mkdtemp(prefix="gpumem-docs-"))
    root.chmod(0o755)
    folder = root / "home"
    shutil.copytree(ROOT / "docs" / "examples", folder / "docs" / "examples")
    shutil.copytree(ROOT / "docs" / "examples", folder, dirs_exist_ok=True)
    for name in ("models", "lab"):
        (folder / name).symlink_to(ROOT / name)
    tracer = _for_another_user(root)
    own(folder)
    try:
        if with_slurm:
            with _cluster(root) as cluster:
                env = _environment(folder, cluster.env)
                yield folder, {**env, "PATH": f"{tracer}:{env['PATH']}"}
        else:
            yield folder, _environment(folder, {})
    finally:
        remove_tree(root)


def _for_another_user(root: Path) -> Path:
    """A folder with commands that trace as another user where we are root, who may not; else empty."""
    folder = root / "bin"
    folder.mkdir()
    found = user_python() if os.geteuid() == 0 else None
    if found is None:
        return folder
    python, more = found
    own_bin, cache = root / "theirs", root / "cache"
    for made in (own_bin, cache):
        made.mkdir()
    own(cache)
    packages = more.get("PYTHONPATH", "")
    start = f'PYTHONPATH="$PYTHONPATH:{packages}" exec {shlex.quote(python)}'
    as_them = f"setpriv --reuid={USER} --regid={USER} --clear-groups"
    theirs = f'env HOME={cache} XDG_CACHE_HOME={cache} PATH="{own_bin}:$PATH" {as_them}'
    _program(own_bin / "python", f'{start} "$@"')
    for name, traces in (("gpusbatch", '*" --trace "*'), ("gpumem", '" trace "*')):
        code = f"import sys; from slurm_gpumem.cli.{name} import main; sys.exit(main())"
        _program(own_bin / name, f'{start} -c {shlex.quote(code)} "$@"')
        ours = Path(sys.executable).with_name(name)
        _program(
            folder / name,
            f'case " $* " in {traces}) exec {theirs} {own_bin}/{name} "$@" ;; esac\nexec {ours} "$@"',
        )
    return folder


def _program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def _environment(home: Path, more: Mapping[str, str]) -> Dict[str, str]:
    theirs = ("SLURM", "SBATCH", "GPUMEM")
    env = {key: value for key, value in os.environ.items() if not key.startswith(theirs)}
    env.update(more, HOME=str(home), XDG_CACHE_HOME=str(home / ".cache"), LC_ALL="C.UTF-8", COLUMNS="80")
    # Output and messages in the order in which a terminal shows them.
    env["PYTHONUNBUFFERED"] = "1"
    # For commands that readers do not see.
    env["REPOSITORY"] = str(ROOT)
    return {**env, "PATH": os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])}


@contextmanager
def _cluster(root: Path) -> Iterator[Cluster]:
    state = root / "cluster"
    nodes = default_nodes(2)
    cluster = up(
        ClusterSpec(nodes=nodes, state=state, hooks=True, job_submit_lua=_plugin(root / "lua", nodes))
    )
    try:
        yield cluster
    finally:
        cluster.stop()


def _plugin(folder: Path, nodes: Sequence[NodeSpec]) -> str:
    """The job_submit plug-in with the table of this site; pages that do not mention it do not notice it."""
    shutil.copytree(ROOT / "lua", folder)
    groups = tuple(
        NodeGroup(
            node.name,
            (GpuGroup(node.gpu_type, node.gpus, node.gpu_memory_mib),),
            ("gpu", "whole"),
            node.cpus,
            node.memory_mib,
        )
        for node in nodes
    )
    # sinfo --version would want a configuration.
    version = subprocess.run(["slurmctld", "-V"], stdout=subprocess.PIPE, text=True, check=True).stdout
    plan = SitePlan(
        groups,
        reserve_mib=0,
        partitions=("gpu", "whole"),
        default_partition="gpu",
        version=parse_version(version),
    )
    (folder / "gpumem_site.lua").write_text(lua_table(plan))
    return str(folder / "job_submit.lua")
