"""The three figures of the submission path, as ratios within one run; exits 1 when one is over its limit.

Run it with `make bench`. Machines are noisy, so what is compared is taken in turns and judged by
the median of the turns' ratios; the times beside each ratio are this machine's, for orientation.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, List, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.devcluster.cluster import Cluster, up
from slurm_gpumem.devcluster.spec import ClusterSpec
from slurm_gpumem.site.nodes import GpuGroup, NodeGroup
from slurm_gpumem.site.plan import SitePlan
from slurm_gpumem.site.render import lua_table
from slurm_gpumem.site.snapshot import parse_version

START_LIMIT, HOOK_LIMIT, UP_LIMIT_S = 8.0, 1.05, 2.0
START_ROUNDS, SUBMISSIONS, UP_ROUNDS = 15, 200, 3
LUA_FILES = ("gpumem.lua", "gpumem_read.lua", "job_submit.lua")
SUMMARY = """\
        Layer (type)               Output Shape         Param #
================================================================
            Conv2d-1         [-1, 64, 112, 112]           9,408
       BatchNorm2d-2         [-1, 64, 112, 112]             128
              ReLU-3         [-1, 64, 112, 112]               0
            Linear-4                 [-1, 1000]         257,000
================================================================
Total params: 266,536
"""
JOB = "#!/bin/bash\n#GPUMEM mem=12G\ntrue\n"


def main() -> int:
    """Take all figures and print them."""
    with tempfile.TemporaryDirectory(prefix="gpumem-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        within = [_bring_up(folder), _cold_start(folder), _hook(folder)]
    return 0 if all(within) else 1


def _bring_up(folder: Path) -> bool:
    """`gpumem devcluster up`: the command itself, as a user calls it."""
    times = []
    for round_ in range(UP_ROUNDS):
        state = folder / f"up{round_}"
        times.append(_seconds(lambda state=state: _devcluster("up", state)))  # type: ignore[misc]
        _devcluster("down", state)
    return _report("gpumem devcluster up", min(times), UP_LIMIT_S, "s", f"best of {UP_ROUNDS}")


def _devcluster(verb: str, state: Path) -> None:
    command = [str(Path(sys.executable).with_name("gpumem")), "devcluster", verb, "--state", str(state)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=_environment(state.parent))


def _cold_start(folder: Path) -> bool:
    """`gpusbatch --dry-run` with a model, against the same interpreter doing nothing."""
    cluster = up(ClusterSpec(state=folder / "start"))
    try:
        env = {**_environment(folder), **cluster.env}
        (folder / "summary.txt").write_text(SUMMARY)
        (folder / "job.sh").write_text("#!/bin/bash\ntrue\n")
        command = str(Path(sys.executable).with_name("gpusbatch"))
        dry_run = [command, "job.sh", "--model", "summary.txt", "--batch-size", "128", "--dry-run"]
        ratio, bare, whole = _in_turns(
            lambda: _call([sys.executable, "-c", "pass"], folder, env),
            lambda: _call(dry_run, folder, env),
            START_ROUNDS,
        )
    finally:
        cluster.stop()
    note = f"{whole * 1000:.0f} ms against {bare * 1000:.0f} ms"
    return _report("gpusbatch --dry-run / python3 -c pass", ratio, START_LIMIT, "x", note)


def _hook(folder: Path) -> bool:
    """Submissions to a controller with the Lua plug-in, against one without, in turns."""
    plain = up(ClusterSpec(state=folder / "plain"))
    hooked = up(ClusterSpec(state=folder / "hooked", job_submit_lua=_lua_folder(folder, plain)))
    try:
        _check_hook(hooked)
        ratio, without, with_hook = _in_turns(lambda: _submit(plain), lambda: _submit(hooked), SUBMISSIONS)
    finally:
        hooked.stop()
        plain.stop()
    note = f"{with_hook * 1000:.1f} ms against {without * 1000:.1f} ms, {SUBMISSIONS} each"
    return _report("sbatch with the Lua hook / without", ratio, HOOK_LIMIT, "x", note)


def _lua_folder(folder: Path, cluster: Cluster) -> str:
    lua = folder / "lua"
    lua.mkdir()
    for name in LUA_FILES:
        shutil.copy(data_path("lua", name), lua)
    nodes = NodeGroup("n[1-2]", (GpuGroup("a100", 4, 40960),), ("gpu", "whole"), 64, 512_000)
    plan = SitePlan(
        groups=(nodes,),
        partitions=("gpu", "whole"),
        default_partition="gpu",
        reserve_mib=0,
        version=parse_version(cluster.run(["sinfo", "--version"], check=True).stdout),
    )
    (lua / "gpumem_site.lua").write_text(lua_table(plan))
    return str(lua / "job_submit.lua")


def _submit(cluster: Cluster) -> None:
    cluster.run(["sbatch", "-H", "--gres=gpu:1"], input=JOB, check=True)


def _check_hook(cluster: Cluster) -> None:
    """A hook that does nothing would be quick and prove nothing."""
    job = cluster.run(["sbatch", "--parsable", "-H", "--gres=gpu:1"], input=JOB, check=True).stdout.strip()
    shown = cluster.run(["scontrol", "show", "job", job], check=True).stdout
    if "shard:12" not in shown:
        raise SystemExit("the Lua hook did not turn the job into shards; nothing to measure")


def _environment(folder: Path) -> Dict[str, str]:
    """As an installed command runs: compiled once, no configuration or cache of this user."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    own = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    return {**env, **own, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}


def _call(command: List[str], folder: Path, env: Dict[str, str]) -> None:
    quiet = subprocess.DEVNULL
    subprocess.run(command, check=True, cwd=folder, env=env, stdin=quiet, stdout=quiet, stderr=quiet)


def _in_turns(one: Callable[[], None], other: Callable[[], None], rounds: int) -> Tuple[float, float, float]:
    """How many times longer the other takes, and the median seconds of each; a first round does not count."""
    one()
    other()
    pairs = []
    for at in range(rounds):
        # Who goes first changes, so that neither always finds the other's warm cache.
        first, second = (one, other) if at % 2 else (other, one)
        taken = (_seconds(first), _seconds(second))
        pairs.append(taken if at % 2 else taken[::-1])
    return (
        statistics.median(pair[1] / pair[0] for pair in pairs),
        statistics.median(pair[0] for pair in pairs),
        statistics.median(pair[1] for pair in pairs),
    )


def _seconds(action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _report(what: str, value: float, limit: float, unit: str, note: str) -> bool:
    verdict = "ok" if value <= limit else "OVER"
    print(f"{what:<40} {value:6.2f} {unit}  (limit {limit:g} {unit})  {verdict:<4}  {note}", flush=True)
    return value <= limit


if __name__ == "__main__":
    sys.exit(main())
