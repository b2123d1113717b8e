"""The figures of the submission path, as ratios within one run, and of one estimate; exits 1 if one is over.

Run it with `make bench`. Machines are noisy, so what is compared is taken in turns and judged by
the median of the turns' ratios; the times beside each ratio are this machine's, for orientation.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Dict, List

from slurm_gpumem.data import LUA_FILES, data_path
from slurm_gpumem.devcluster.cluster import Cluster, up
from slurm_gpumem.devcluster.spec import ClusterSpec
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.structural.estimator import estimate
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.site.nodes import GpuGroup, NodeGroup
from slurm_gpumem.site.setup.plan import SitePlan
from slurm_gpumem.site.setup.render import lua_table
from slurm_gpumem.slurm.client import parse_version
from slurm_gpumem.summaries.reader import read_summary

START_LIMIT, ESTIMATE_LIMIT, HOOK_LIMIT, UP_LIMIT_S = 8.0, 8.0, 1.05, 2.0
RESNET_LIMIT_MS, LONG_LIMIT_MS, LONG_LINES = 10.0, 60.0, 2000
START_ROUNDS, ESTIMATE_ROUNDS, SUBMISSIONS, UP_ROUNDS, ESTIMATES = 15, 20, 200, 3, 20
SUMMARY = Path(__file__).resolve().parents[2] / "docs" / "examples" / "resnet50.txt"
JOB = "#!/bin/bash\n#GPUMEM mem=12G\ntrue\n"


def main() -> int:
    """Take all figures and print them."""
    with tempfile.TemporaryDirectory(prefix="gpumem-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        within = [*_estimates(), _command(folder), _bring_up(folder), _cold_start(folder), _hook(folder)]
    return 0 if all(within) else 1


def _estimates() -> List[bool]:
    """One estimate in process, in CPU time: ResNet-50, and its table repeated to a long one."""
    text = (Path(__file__).parents[2] / "docs" / "examples" / "resnet50.txt").read_text()
    lines = text.splitlines()
    first, *rows, last = (number for number, line in enumerate(lines) if "[" in line)
    inner = [lines[number] for number in rows]
    repeated = (inner * (1 + LONG_LINES // len(inner)))[: LONG_LINES - len(lines) + len(inner)]
    long = "\n".join([*lines[: first + 1], *repeated, *lines[last:]]) + "\n"
    return [
        _one_estimate("estimate of ResNet-50", text, RESNET_LIMIT_MS),
        _one_estimate(f"estimate of a summary of {LONG_LINES:,} lines", long, LONG_LIMIT_MS),
    ]


def _one_estimate(what: str, text: str, limit: float) -> bool:
    job, gpu = TrainingJob(batch_size=64), find_gpu("h200")
    reading, estimating = [], []
    for _ in range(ESTIMATES):
        begun = time.process_time()
        summary = read_summary(text)
        read = time.process_time()
        estimate(summary, job, gpu)
        reading.append(read - begun)
        estimating.append(time.process_time() - read)
    note = f"best of {ESTIMATES}; reading it {min(reading) * 1000:.1f} ms more"
    return _report(what, min(estimating) * 1000, limit, "ms", note)


def _command(folder: Path) -> bool:
    """`gpumem estimate FILE` in CPU time of user and system, against the same interpreter doing nothing.

    The first call, which estimates, is shown; the limit is for the same call again, which finds it kept.
    """
    env = _environment(folder)
    command = [str(Path(sys.executable).with_name("gpumem")), "estimate", str(SUMMARY)]
    command += ["--batch-size", "128", "--gpu", "h200"]
    bare = [sys.executable, "-c", "pass"]
    _cpu_s(command, folder, env)  # compiles
    first, again, nothing = [], [], []
    for _ in range(ESTIMATE_ROUNDS):
        shutil.rmtree(folder / "cache")
        first.append(_cpu_s(command, folder, env))
        again.append(_cpu_s(command, folder, env))
        nothing.append(_cpu_s(bare, folder, env))
    note = (
        f"{_milliseconds(again)} against {_milliseconds(nothing)} of CPU time; "
        f"the first time {_ratio(first, nothing):.1f} x"
    )
    return _report("gpumem estimate / python3 -c pass", _ratio(again, nothing), ESTIMATE_LIMIT, "x", note)


def _cpu_s(command: List[str], folder: Path, env: Dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _call(command, folder, env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _bring_up(folder: Path) -> bool:
    """`gpumem devcluster up`: the command itself, as a user calls it."""
    times = []
    for round_ in range(UP_ROUNDS):
        state = folder / f"up{round_}"
        times.append(_seconds(lambda state=state: _devcluster("up", state)))  # type: ignore[misc]
        _devcluster("down", state)
    return _report(
        "gpumem devcluster up", statistics.median(times), UP_LIMIT_S, "s", f"median of {UP_ROUNDS}"
    )


def _devcluster(verb: str, state: Path) -> None:
    command = [str(Path(sys.executable).with_name("gpumem")), "devcluster", verb, "--state", str(state)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=_environment(state.parent))


def _cold_start(folder: Path) -> bool:
    """`gpusbatch --dry-run` with a model, against the same interpreter doing nothing."""
    cluster = up(ClusterSpec(state=folder / "start"))
    try:
        env = {**_environment(folder), **cluster.env}
        (folder / "job.sh").write_text("#!/bin/bash\ntrue\n")
        command = str(Path(sys.executable).with_name("gpusbatch"))
        dry_run = [command, "job.sh", "--model", str(SUMMARY), "--batch-size", "128", "--dry-run"]
        bare, whole = _in_turns(
            START_ROUNDS,
            lambda: _call([sys.executable, "-c", "pass"], folder, env),
            lambda: _call(dry_run, folder, env),
        )
    finally:
        cluster.stop()
    note = f"{_milliseconds(whole)} against {_milliseconds(bare)}"
    return _report("gpusbatch --dry-run / python3 -c pass", _ratio(whole, bare), START_LIMIT, "x", note)


def _hook(folder: Path) -> bool:
    """Submissions to a controller with the Lua plug-in, against one without.

    A second controller without it takes its turn too: how far the two differ is this machine's noise.
    """
    plain = up(ClusterSpec(state=folder / "plain"))
    twin = up(ClusterSpec(state=folder / "twin"))
    hooked = up(ClusterSpec(state=folder / "hooked", job_submit_lua=_lua_folder(folder, plain)))
    try:
        _check_hook(hooked)
        without, again, with_hook = _in_turns(
            SUBMISSIONS, lambda: _submit(plain), lambda: _submit(twin), lambda: _submit(hooked)
        )
    finally:
        for cluster in (hooked, twin, plain):
            cluster.stop()
    note = f"{SUBMISSIONS} each of {_milliseconds(without)}; without / without {_ratio(again, without):.2f} x"
    return _report("sbatch with the Lua hook / without", _ratio(with_hook, without), HOOK_LIMIT, "x", note)


def _lua_folder(folder: Path, cluster: Cluster) -> str:
    lua = folder / "lua"
    lua.mkdir()
    for name in (*LUA_FILES, "job_submit.lua"):
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


def _in_turns(rounds: int, *actions: Callable[[], None]) -> List[List[float]]:
    """Seconds of each action in each round; a first round does not count."""
    taken: List[List[float]] = [[] for _ in actions]
    for action in actions:
        action()
    for round_ in range(rounds):
        # Who goes first changes, so that nobody always finds another's warm cache.
        for at in range(len(actions)):
            turn = (at + round_) % len(actions)
            taken[turn].append(_seconds(actions[turn]))
    return taken


def _ratio(one: List[float], other: List[float]) -> float:
    """How many times longer one takes: the median over the rounds, each within the same moment."""
    return statistics.median(a / b for a, b in zip(one, other))


def _milliseconds(times: List[float]) -> str:
    return f"{statistics.median(times) * 1000:.0f} ms"


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
