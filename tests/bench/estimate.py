"""How long one estimate takes, as the commands make it, and the whole command.

    python tests/bench/estimate.py [--texts N] [--runs N] [SUMMARY ...]

Each summary is read and estimated in a process of its own, imports not counted; and by `gpumem estimate`,
from the start of the interpreter to its end. CPU time, the least of some runs: other programs count little.
Without names: texts of N measured models (torchinfo, torchsummary, print(model) with its input stated;
library and hand-written), each at the batch size of one of its runs, and the traces of those that are stored.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

_ONE = """
import sys, time
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.stated_input import with_input
from slurm_gpumem.estimators.training_job import StatedTraining, training_job
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.utilization.predict import estimate_with_utilization
import slurm_gpumem.estimators.corrected, slurm_gpumem.estimators.traced
begin = time.process_time()
summary = with_input(read_summary(sys.argv[1]), sys.argv[3])
job = training_job(summary, StatedTraining(batch_size=int(sys.argv[2]) or None))
found = estimate_with_utilization("auto", summary, job, find_gpu("h200"))
took = time.process_time() - begin
known = summary.trace is None and found.estimator.startswith("trace")
print(took, "trace" if summary.trace else "text of a known model" if known else "text")
"""
LIMITS_S = {"text": 0.060, "trace": 0.150}


class Subject(NamedTuple):
    """What is estimated."""

    path: Path
    batch: int = 0
    input: str = ""


def measured(count: int, folder: Path) -> Iterator[Subject]:
    """Texts of some measured models, one of each tool's, and the stored traces of those that are known."""
    from lab.ground_truth import load_ground_truth
    from lab.places import GROUND_TRUTH, HANDWRITTEN
    from slurm_gpumem.estimators.known.recognize import with_stored_trace
    from slurm_gpumem.summaries.input_shape import shape_words
    from slurm_gpumem.summaries.parsers.own import to_json
    from slurm_gpumem.summaries.reader import read_summary

    for data in (GROUND_TRUTH, HANDWRITTEN):
        truth = load_ground_truth(data)
        for number, run in enumerate(truth.runs[:: max(1, 2 * len(truth.runs) // count)]):
            texts = truth.texts[run.summary]
            for tool, text in texts.items():
                path = folder / f"{data.name}-{number}-{tool}.txt"
                path.write_text(text)
                if tool != "print":
                    yield Subject(path, run.job.batch_size)
                    continue
                shown = read_summary(texts.get("torchinfo_full", text) + "\n")
                if shown.input_shapes:
                    yield Subject(path, run.job.batch_size, shape_words((-1, *shown.input_shapes[0][1:])))
            traced = with_stored_trace(read_summary(next(iter(texts.values())) + "\n"), run.job)
            if traced.trace is not None:
                path = folder / f"{data.name}-{number}.json"
                path.write_text(to_json(traced))
                yield Subject(path, run.job.batch_size)


def times(subject: Subject, runs: int) -> Optional[Tuple[str, float, float]]:
    """What it is, and seconds of the estimate and of the whole command; None where it is refused."""
    words = [str(subject.path), str(subject.batch), subject.input]
    best, kind = float("inf"), ""
    for _ in range(runs):
        done = subprocess.run(
            [sys.executable, "-c", _ONE, *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return None
        took, kind = done.stdout.strip().split(" ", 1)
        best = min(best, float(took))
    command = [sys.executable, "-m", "slurm_gpumem", "estimate", words[0], "--gpu", "h200"]
    command += ["--batch-size", words[1]] if subject.batch else []
    command += ["--input", subject.input] if subject.input else []
    whole = min(_cpu_s(command) for _ in range(runs))
    return kind, best, whole


def _cpu_s(command: List[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Print median, P90 and worst for texts and traces."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("summaries", nargs="*", type=Path)
    parser.add_argument("--texts", type=int, default=16, help="models (default: 16)")
    parser.add_argument("--runs", type=int, default=3, help="of each, the least counts (default: 3)")
    args = parser.parse_args()
    found: Dict[str, List[Tuple[float, float, str]]] = {}
    refused = 0
    with tempfile.TemporaryDirectory() as folder:
        named = [Subject(path) for path in args.summaries]
        for subject in named or measured(args.texts, Path(folder)):
            took = times(subject, args.runs)
            if took is None:
                refused += 1
            else:
                found.setdefault(took[0], []).append((*took[1:], subject.path.name))
    for kind, rows in sorted(found.items()):
        rows.sort()
        seconds = [row[0] for row in rows]
        aim = f" (aim {LIMITS_S[kind] * 1000:.0f})" if kind in LIMITS_S else ""
        print(
            f"{kind}: {len(rows)} estimates, median {median(seconds) * 1000:.0f} ms{aim}, P90 "
            f"{seconds[int(0.9 * (len(rows) - 1))] * 1000:.0f} ms, worst {seconds[-1] * 1000:.0f} ms "
            f"({rows[-1][2]}); the whole command: median {median(row[1] for row in rows) * 1000:.0f} ms"
        )
    if refused:
        print(f"{refused} texts were refused (print(model) whose input cannot be followed)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
