"""What slows light jobs beside heavy ones at one MPS server, and what helps: priorities, fewer SMs, CPUs.

As root, on a machine with an NVIDIA GPU, torch and MPS, from the repository's root (four minutes):

    python3 lab/gpu/priorities.py --out DIR [--ways plain,low]

DIR/sharing_modes.jsonl gets a row for each way and set: times as long as alone, by job.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "gpu"))

from mode_workers import Worker
from sharing_modes import VICTIM, Trial

from slurm_gpumem.node.jobs import SHARED_UID

POOL = {"small": 6, "conv256": 1, "text128": 1, "conv32": 2, "text16": 3}
SETS: Sequence[Tuple[str, ...]] = (
    ("conv256", "small"),
    ("conv256", "small", "small", "small"),
    ("conv256", "text16", "small", "small", "small"),
    ("conv32", "text16", "small", "small", "small"),
    ("conv32", "conv32", "text16", "small", "small"),
    ("text128", "text16", "small"),
    ("text128", "conv256"),
    ("conv32", "text16", "text16", "small", "small", "small"),
    ("text16", "text16", "text16"),
    ("small",) * 6,
)
PRIORITY, THREADS = "CUDA_MPS_CLIENT_PRIORITY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
HEAVY, MEDIUM = ("conv32", "conv256", "text128"), ("text16",)
WAYS: Dict[str, Dict[str, Dict[str, str]]] = {
    "plain": {},
    "low": {kind: {PRIORITY: "1"} for kind in HEAVY},
    "lower": {kind: {PRIORITY: "1"} for kind in HEAVY + MEDIUM},
    "threads90": {kind: {THREADS: "90"} for kind in HEAVY},
    "low90": {kind: {PRIORITY: "1", THREADS: "90"} for kind in HEAVY},
    "pinned": {},
    "busy": {},
    "again": {},
}


def main() -> int:
    """One way after another; alone first in each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--mps-control", default="/usr/bin/nvidia-cuda-mps-control")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU")
    args = parser.parse_args()
    if not args.rehearse:
        import torch  # noqa: F401 - once, before the forks
    args.out.mkdir(parents=True, exist_ok=True)
    control = args.mps_control
    if args.rehearse:
        control = str(
            Path(__file__).resolve().parents[2] / "tests" / "node" / "bin" / "nvidia-cuda-mps-control"
        )
    trial = Trial(args.out, args.rehearse, control, Path(tempfile.mkdtemp()))
    trial.let_users_in()
    for way in args.ways.split(","):
        _way(trial, way)
    trial.end_workers()
    trial.mps.stop(trial.uuid, SHARED_UID)
    return 0


def _way(trial: Trial, way: str) -> None:
    trial.fresh()
    pool: Dict[str, List[Worker]] = {}
    core = 0
    for kind, count in POOL.items():
        for _ in range(count):
            worker = trial.worker(kind, VICTIM, SHARED_UID, **WAYS[way].get(kind, {}))
            if way == "pinned":
                os.sched_setaffinity(worker.pid, {core % (os.cpu_count() or 1)})
                core += 1
            pool.setdefault(kind, []).append(worker)
    built = [worker.wait_built() for workers in pool.values() for worker in workers]
    trial.say("built", way=way, seconds=[answer.get("seconds") for answer in built])
    alone = {kind: trial.rates([workers[0]], 1.2)[0] for kind, workers in pool.items()}
    trial.say("alone", way=way, **alone)
    burn = [sys.executable, "-c", "while True: sum(range(1000))"]
    burners = [subprocess.Popen(burn) for _ in range(10)] if way == "busy" else []
    if burners:
        trial.say("alone", way="busy, CPUs", **{k: trial.rates([w[0]], 1.2)[0] for k, w in pool.items()})
    for kinds in SETS:
        taken: Dict[str, int] = {}
        chosen = []
        for kind in kinds:
            chosen.append(pool[kind][taken.get(kind, 0)])
            taken[kind] = taken.get(kind, 0) + 1
        found: List[Any] = trial.rates(chosen, 1.6)
        slow = [
            round(alone[kind] / rate, 2) if rate and alone[kind] else None for kind, rate in zip(kinds, found)
        ]
        work = round(sum(1 / value for value in slow if value), 2)
        trial.say("set", way=way, kinds=kinds, slow=slow, work=work)
    for burner in burners:
        burner.kill()


if __name__ == "__main__":
    sys.exit(main())
