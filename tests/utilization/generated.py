"""Rows in the shape of measured ones, made from known coefficients: to test fitting without a GPU."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any, Dict, List

from slurm_gpumem.data import data_path
from slurm_gpumem.memory.gpus import find_gpu
from slurm_gpumem.memory.ground_truth import TOOLS
from slurm_gpumem.memory.structural.estimator import simulate
from slurm_gpumem.model.reader import read_summary
from slurm_gpumem.utilization.measured import job_of, load_texts
from slurm_gpumem.utilization.roofline import START, rates_of, step_times
from slurm_gpumem.utilization.work import step_work

TRUE = {
    **START,
    "compute_conv_tf32": 0.35,
    "compute_gemm_half": 0.6,
    "bandwidth_pointwise": 0.8,
    "host_forward": 2.2e-5,
    "host_backward": 1.6e-5,
}


def write_solo(folder: Path, count: int, seed: int = 0) -> List[Dict[str, Any]]:
    """Write solo.jsonl.gz with `count` jobs of the ground truth, measured on an imagined GPU."""
    rng = random.Random(seed)
    rows = []
    for name in ("memory", "toggles"):
        with gzip.open(data_path("models", f"ground-truth/rows-{name}.jsonl.gz"), "rt") as file:
            rows += [json.loads(line) for line in file]
    rows = [row for row in rows if not row.get("error") and not row["toggles"]]
    rng.shuffle(rows)
    texts = load_texts({row["summary"]: None for row in rows[: 2 * count]})
    gpu = find_gpu("h200")
    made = []
    for row in rows:
        tools = texts.get(row["summary"], {})
        best = next((tools[tool] for tool in TOOLS if tool in tools and tool != "print"), None)
        if best is None or len(made) == count:
            continue
        job = job_of(row)
        walk, _ = simulate(read_summary(best.rstrip("\n") + "\n"), job, gpu)
        times = step_times(step_work(walk.tape, job), rates_of(gpu), TRUE)
        named = {key: row[key] for key in ("key", "source", "build", "args", "size", "task", "task_args")}
        job_part = {key: row[key] for key in ("batch", "optimizer", "precision", "toggles")}
        repeats = [_measured(times, rng) for _ in range(3)]
        mean = {name: sum(r[name] for r in repeats) / 3 for name in repeats[0]}
        made.append({**named, **job_part, "utilization": {**mean, "seconds": 3.0, "repeats": repeats}})
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "solo.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in made)
    return made


def _measured(times: Any, rng: random.Random) -> Dict[str, float]:
    def percent(seconds: float) -> float:
        return min(99.5, 100 * seconds / times.step * rng.uniform(0.97, 1.03))

    return {
        "sm_active": percent(times.busy),
        "sm_occupancy": percent(times.warps),
        "dram_active": percent(times.traffic),
        "tensor_active": 10.0,
        "power_w": 400.0,
        "step_seconds": times.step * rng.uniform(0.97, 1.03),
    }
