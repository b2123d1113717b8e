"""What the sampler costs on a node with 8 GPUs and 40 processes of 16 jobs.

    python tests/bench/sampler.py [--seconds 30]

Runs the real sampler process with the settings a site has by default, on real (sleeping) processes. Only
the driver's library is played, in Python, which counts the calls; what each of them costs on a real GPU is
in lab/docs/node-life.json and is added in the open.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.node import jobs
from slurm_gpumem.node.gpus import NodeGpu
from slurm_gpumem.node.jobs import NodeJob, RunFolder

GPUS, JOBS, PROCESSES = 8, 16, 40
LIMIT_SHARE, LIMIT_MIB = 0.005, 40.0
MEASURED = Path(__file__).resolve().parents[2] / "lab" / "docs" / "node-life.json"
CALLS = {
    "nvmlDeviceGetComputeRunningProcesses_v3": "processes",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": "mps_processes",
    "nvmlDeviceGetMemoryInfo": "memory_mib",
    "nvmlDeviceGetUtilizationRates": "utilization",
    "nvmlDeviceGetPowerUsage": "power_w",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_j",
    "nvmlGpmSampleGet": "gpm_sample",
    "nvmlGpmMetricsGet": "gpm_metrics",
    "nvmlEventSetWait_v2": "xids",
    "nvmlDeviceGetAccountingMode": "accounting_peaks",
}
"""The driver's functions, by the names under which their cost was measured."""


class PlayedDriver:
    """NVML's functions for eight GPUs that train; the handle of a GPU is its number plus one."""

    def __init__(self, holders: Sequence[Sequence[int]]) -> None:
        self._holders = holders
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        play = getattr(type(self), "_" + name.partition("_v")[0], None)
        if play is None:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            play(self, *arguments)
            return 10 if name == "nvmlEventSetWait_v2" else 0

        setattr(self, name, call)
        return call

    def _nvmlInit(self) -> None: ...

    def _nvmlShutdown(self) -> None: ...

    def _nvmlDeviceGetCount(self, count: Any) -> None:
        count._obj.value = GPUS

    def _nvmlDeviceGetHandleByIndex(self, index: Any, handle: Any) -> None:
        handle._obj.value = index.value + 1

    def _nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> None:
        buffer.value = uuid_of(handle.value - 1).encode()

    def _nvmlDeviceGetComputeRunningProcesses(self, handle: Any, count: Any, infos: Any) -> None:
        pids = self._holders[handle.value - 1]
        count._obj.value = len(pids)
        for place, pid in enumerate(pids):
            infos[place].pid, infos[place].used = pid, (3000 + place) << 20

    _nvmlDeviceGetMPSComputeRunningProcesses = _nvmlDeviceGetComputeRunningProcesses

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> None:
        memory._obj.used, memory._obj.total = 20_000 << 20, 143_771 << 20

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> None:
        rates._obj.gpu = 90 + int(time.time()) % 10

    def _nvmlDeviceGetPowerUsage(self, handle: Any, value: Any) -> None:
        value._obj.value = 600_000 + int(time.time() * 1000) % 50_000

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, value: Any) -> None:
        value._obj.value = int(time.time() * 625_000)

    def _nvmlEventSetCreate(self, events: Any) -> None: ...

    def _nvmlDeviceRegisterEvents(self, *arguments: Any) -> None: ...

    def _nvmlEventSetWait(self, *arguments: Any) -> None: ...

    def _nvmlDeviceGetAccountingMode(self, handle: Any, mode: Any) -> None:
        mode._obj.value = 0

    def _nvmlGpmSampleAlloc(self, sample: Any) -> None:
        sample._obj.value = 1

    def _nvmlGpmSampleGet(self, handle: Any, sample: Any) -> None: ...

    def _nvmlGpmMetricsGet(self, request: Any) -> None:
        for place in range(request._obj.count):
            request._obj.metrics[place].value = 40.0 + time.time() % 10


def uuid_of(number: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{number:012x}"


def play(root: Path) -> int:
    """The sampler itself, in a process of its own, on the played driver."""
    from slurm_gpumem.node.nvml import Nvml
    from slurm_gpumem.node.sampler import __main__ as sampler
    from slurm_gpumem.node.sources.nvml import GpmSource, NvmlSource

    driver = PlayedDriver(json.loads((root / "holders").read_text()))
    gpus = tuple(NodeGpu(number, uuid_of(number), "card", 143_771) for number in range(GPUS))

    def source(*_: object) -> GpmSource:
        nvml = Nvml(driver)
        return GpmSource(NvmlSource(nvml, [uuid for _, uuid in nvml.devices()]))

    def told(number: int, frame: object) -> None:
        (root / "calls.part").write_text(json.dumps(driver.calls))
        os.replace(root / "calls.part", root / "calls")

    sampler.find_gpus = lambda *_: gpus  # type: ignore[assignment]
    sampler.choose_source = source  # type: ignore[assignment]
    signal.signal(signal.SIGUSR1, told)
    return sampler.main(["--node", "n1"])


def set_up(root: Path) -> Tuple[List[subprocess.Popen[bytes]], Dict[str, str]]:
    """Jobs, their processes, Slurm's answer and the site's configuration; (processes, environment)."""
    folder = RunFolder(root / "run")
    folder.make()
    for number in range(GPUS):
        folder.pipe(uuid_of(number), os.getuid()).mkdir(parents=True)
    (root / "bin").mkdir()
    shards = "".join(f"echo {job} {os.getuid()} RUNNING 0 gres:shard:20\n" for job in range(1, JOBS + 1))
    (root / "bin" / "squeue").write_text(f"#!/bin/sh\n{shards}")
    (root / "bin" / "squeue").chmod(0o755)
    (root / "gpumem.toml").write_text(
        f'[node]\nspool = "{root}/spool"\nslurm_bin = "{root}/bin"\n'
        f'prometheus_file = "{root}/gpumem.prom"\n[devcluster]\nmps_control = "{root}/none"\n'
    )
    for job in range(1, JOBS + 1):
        claim = CommentRecord(estimate_mib=17000, request_mib=20480, shards=20, estimator="structural")
        gpu = (uuid_of((job - 1) % GPUS),)
        jobs.put(folder, NodeJob(job, os.getuid(), f"user{job}", gpu, "mps", time.time(), claim=claim))
    sleepers, holders = [], [[] for _ in range(GPUS)]  # type: ignore[var-annotated]
    for number in range(PROCESSES):
        job = number % JOBS + 1
        sleepers.append(subprocess.Popen(["sleep", "600"], env={"SLURM_JOB_ID": str(job)}))
        holders[(job - 1) % GPUS].append(sleepers[-1].pid)
    (root / "holders").write_text(json.dumps(holders))
    env = {
        "GPUMEM_RUN_DIR": f"{root}/run",
        "GPUMEM_SITE_CONFIG": f"{root}/gpumem.toml",
        "PATH": "/usr/bin:/bin",
    }
    return sleepers, env


def processor_s(pid: int) -> float:
    """To the nanosecond, where /proc/PID/stat counts in hundredths."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def calls_so_far(root: Path, pid: int) -> Counter[str]:
    (root / "calls").unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    wait_for(lambda: (root / "calls").exists())
    return Counter(json.loads((root / "calls").read_text()))


def wait_for(condition: Any, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("the sampler does not do what it should; is it broken?")
        time.sleep(0.05)


def measures_all(root: Path) -> bool:
    try:
        live = json.loads((root / "run" / "live.json").read_text())
    except OSError:
        return False
    return sum(bool(job["shards_verified"] and job["peak_mib"]) for job in live["jobs"].values()) == JOBS


def nvml_share(calls: Mapping[str, int], seconds: float) -> Tuple[float, List[str], str]:
    """(part of a core that these calls take on a real GPU, calls whose cost is not known, that GPU)."""
    life = json.loads(MEASURED.read_text())["parts"]
    costs: Dict[str, float] = life["sampler overhead"]["nvml_ms"]
    total, unknown = 0.0, []
    for function, name in CALLS.items():
        if name in costs:
            total += calls.get(function, 0) * costs[name] / 1000
        elif calls.get(function):
            unknown.append(f"{name} ({calls[function] / seconds:.1f}/s)")
    return total / seconds, unknown, life["surroundings"]["nvidia_smi"].partition(",")[0]


def main(argv: Sequence[str]) -> int:
    """1 when a limit is passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long to measure (default 60)")
    parser.add_argument("--play", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--profile", type=Path, help="also write what cProfile says there")
    args = parser.parse_args(argv)
    if args.play:
        if args.profile:
            import cProfile

            profile = cProfile.Profile()
            result: int = profile.runcall(play, args.play)
            profile.dump_stats(args.profile)
            return result
        return play(args.play)
    memory = Path("/dev/shm")
    # /run is in memory on every node.
    root = Path(tempfile.mkdtemp(prefix="gpumem-bench-", dir=memory if memory.is_dir() else None))
    sleepers, env = set_up(root)
    more = [f"--profile={args.profile.resolve()}"] if args.profile else []
    sampler = subprocess.Popen([sys.executable, __file__, f"--play={root}", *more], env=env)
    try:
        # Slurm is asked about one job per look.
        wait_for(lambda: measures_all(root), 90)
        time.sleep(5)
        calls, spent, began = calls_so_far(root, sampler.pid), processor_s(sampler.pid), time.monotonic()
        time.sleep(args.seconds)
        seconds = time.monotonic() - began
        own = (processor_s(sampler.pid) - spent) / seconds
        calls, rss = calls_so_far(root, sampler.pid) - calls, rss_mib(sampler.pid)
    finally:
        sampler.terminate()
        sampler.wait(timeout=20)
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
        shutil.rmtree(root)
    nvml, unknown, gpu = nvml_share(calls, seconds)
    print(f"{GPUS} GPUs, {PROCESSES} processes of {JOBS} jobs, {seconds:.0f} s, a look a second")
    print(f"Python's part   {own:7.3%} of one core (the played driver's own cost included)")
    print(f"NVML's part     {nvml:7.3%} by the calls' cost on an {gpu} (lab/docs/node-life.json)")
    print(f"sum             {own + nvml:7.3%} (limit {LIMIT_SHARE:.1%})")
    print(f"memory          {rss:6.1f} MiB (limit {LIMIT_MIB:g})")
    if unknown:
        print(f"not in the sum, never measured: {', '.join(unknown)}")
    return 0 if own + nvml <= LIMIT_SHARE and rss <= LIMIT_MIB else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
