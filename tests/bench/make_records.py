"""Job records by the million, made up: the shape of a site's year, for the accounting's figures.

    python tests/bench/make_records.py DIR --jobs 1000000 [--feeds]

Users, models and times are drawn from a fixed seed. Jobs come in order of their start over a year, on GPUs
that several of them share. Without --feeds every record is a file of its own, as nodes write them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

YEAR_S = 365 * 86_400
MODELS = 120
USERS = 200
NODES, GPUS_PER_NODE = 50, 8
GPU_NAMES = ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "NVIDIA L40S")
GPU_MIB = (40_960, 81_559, 46_068)
CURVE_POINTS = 40


def records(jobs: int, *, until: float, seed: int = 7) -> Iterator[Dict[str, Any]]:
    """The records, in order of their jobs' start."""
    draw = random.Random(seed)
    begin = until - YEAR_S
    for number in range(jobs):
        # Later jobs wait for earlier ones in no way: only the overlap on a GPU matters here.
        start = begin + number * (YEAR_S - 90_000) / jobs + draw.random() * 60
        yield _record(draw, number + 1, start)


def _record(draw: random.Random, job_id: int, start: float) -> Dict[str, Any]:
    model = min(int(draw.expovariate(0.05)), MODELS - 1)
    user = min(int(draw.expovariate(0.03)), USERS - 1)
    node, gpu = draw.randrange(NODES), draw.randrange(GPUS_PER_NODE)
    kind = node % len(GPU_NAMES)
    uuid = f"GPU-{node:08x}-0000-0000-0000-{gpu:012x}"
    peak = 800 + (model * 977) % 24_000 + draw.random() * 500
    estimate = int(peak * draw.gauss(1.03, 0.08)) + 1
    request = int(estimate * 1.08)
    shards = -(-request // 1024)
    seconds = draw.expovariate(1 / 7200) + 30
    code = 0 if draw.random() < 0.93 else 1
    share = round(draw.random(), 4)
    oom = peak > shards * 1024
    memory = " ".join(str(int(peak * min(1, 0.2 + point / 6))) for point in range(CURVE_POINTS))
    activity = " ".join([str(int(share * 100))] * CURVE_POINTS)
    curve = f"{start:.1f} {seconds / CURVE_POINTS:.1f};{memory};{activity}"
    batch = 2 ** draw.randrange(3, 9)
    estimator = "corrected" if draw.random() < 0.8 else "remembered"
    return {
        "claim": f"gpumem/1:est={estimate},req={request},by={estimator},gpu=a100,batch={batch},"
        f"shards={shards},oom=requeue,model=model-{model},fp={model:016x},opt=adam,prec=fp32,"
        f"parts=100+100+200+{max(0, estimate - 1100)}+100+100+500",
        "cluster": "site",
        "end": round(start + seconds, 3),
        "energy_j": round(seconds * 120 * share, 1),
        "events": [],
        "exit_code": 1 if oom else code,
        "gpu": {
            uuid: {
                "curve": curve,
                "energy_j": round(seconds * 120 * share, 1),
                "gpu_dram_active": 0.31,
                "gpu_power_w": 310.5,
                "gpu_sm_active": round(min(1.0, share * 2), 4),
                "gpu_sm_occupancy": 0.2,
                "gpu_utilization": 0.97,
                "mean_mib": round(peak * 0.8, 1),
                "memory_mib": GPU_MIB[kind],
                "name": GPU_NAMES[kind],
                "number": gpu,
                "peak_mib": round(peak, 1),
                "sm_active_share": share,
            }
        },
        "gpus": [uuid],
        "hints": [],
        "job_id": job_id,
        "limit_mib": shards * 1024,
        "mean_mib": round(peak * 0.8, 1),
        "met": [job_id - 1, job_id + 1] if job_id % 3 else [],
        "mode": "mps",
        "node": f"n{node}",
        "notes": [],
        "partition": "gpu" if user % 4 else "short",
        "peak_mib": round(peak, 1),
        "restarts": 0,
        "samples": int(seconds),
        "schema": "gpumem-job/2",
        "shards": shards,
        "shards_verified": True,
        "signal": 0,
        "start": round(start, 3),
        "state": None if oom else "COMPLETED" if code == 0 else "FAILED",
        "uid": 10_000 + user,
        "user": f"usr{user}",
        "verdict": "oom" if oom else None,
    }


def write_files(folder: Path, jobs: int, *, until: float) -> None:
    """One file a record, as the nodes' hooks write them."""
    folder.mkdir(parents=True, exist_ok=True)
    for record in records(jobs, until=until):
        path = f"{folder}/{record['job_id']}.0.{record['node']}.json"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o640)
        os.write(handle, json.dumps(record, separators=(",", ":")).encode() + b"\n")
        os.close(handle)


def main(argv: List[str]) -> int:
    """Make a folder of records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    args = parser.parse_args(argv)
    write_files(args.folder, args.jobs, until=time.time())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
