"""How long one estimate takes in the process that makes it: reading the summary and estimating, imports not.

    python tests/bench/estimate.py [--texts N] [SUMMARY ...]

Each summary is estimated in a process of its own, as the commands do it. Without names: the fullest texts of
N measured models (40), each at the batch size of one of its runs. CPU time, so other programs count little.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Dict, List, Tuple

_ONE = """
import sys, time
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.training_job import StatedTraining, training_job
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.utilization.predict import estimate_with_utilization
import slurm_gpumem.estimators.corrected, slurm_gpumem.estimators.traced
begin = time.process_time()
summary = read_summary(sys.argv[1])
job = training_job(summary, StatedTraining(batch_size=int(sys.argv[2]) or None))
estimate_with_utilization("auto", summary, job, find_gpu("h200"))
print("text" if summary.trace is None else "trace", time.process_time() - begin)
"""
LIMITS = {"text": 0.060, "trace": 0.150}


def measured_texts(count: int, folder: Path) -> List[Tuple[Path, int]]:
    """The fullest texts of some measured models as files, with a batch size each."""
    from slurm_gpumem.lab.ground_truth import TOOLS, load_ground_truth

    truth = load_ground_truth()
    found = []
    for run in truth.runs[:: max(1, len(truth.runs) // count)]:
        texts = truth.texts[run.summary]
        path = folder / f"{len(found)}.txt"
        path.write_text(texts[next(tool for tool in TOOLS if tool in texts)])
        found.append((path, run.job.batch_size))
    return found


def main() -> int:
    """Print median, P90 and worst for texts and traces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("summaries", nargs="*", type=Path)
    parser.add_argument("--texts", type=int, default=40)
    args = parser.parse_args()
    times: Dict[str, List[Tuple[float, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        subjects = [(path, 0) for path in args.summaries] or measured_texts(args.texts, Path(folder))
        for path, batch in subjects:
            done = subprocess.run(
                [sys.executable, "-c", _ONE, str(path), str(batch)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                kind, seconds = done.stdout.split()
                times.setdefault(kind, []).append((float(seconds), path.name))
    for kind, found in times.items():
        ordered = sorted(found)
        values = [seconds for seconds, _ in ordered]
        print(
            f"{kind}: {len(values)} estimates, median {median(values) * 1000:.0f} ms (aim "
            f"{LIMITS[kind] * 1000:.0f}), P90 {values[int(0.9 * (len(values) - 1))] * 1000:.0f} ms, worst "
            f"{values[-1] * 1000:.0f} ms ({ordered[-1][1]})"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
