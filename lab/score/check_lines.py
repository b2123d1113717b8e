"""Hold memory lines against full estimates on the texts of measured models.

    python -m lab.score.check_lines [--sample N] [--estimator NAME]

Makes the line of every text (of N of them) for a job that was measured with it, and compares it with the
estimator at batches from a quarter of the job's to four times it, on GPUs of both kinds of cuBLAS workspace.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass
from typing import Iterator, List, Sequence, Tuple

from lab.ground_truth import GroundTruth, load_ground_truth, summary_of
from lab.score.figures import quantile
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.environment import Environment, in_environment
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.make_line import SPAN, TOLERANCE, make_line
from slurm_gpumem.estimators.memory_line import parse_line
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.types import ModelSummary

GPUS = ("h200", "a100")
BATCHES = 6
SEED = 3


@dataclass(frozen=True)
class Checked:
    """One line and how far it was from the estimator, at worst and each time."""

    name: str
    characters: int
    errors: Tuple[float, ...]


def check(summary: ModelSummary, job: TrainingJob, estimator: str, name: str, draw: random.Random) -> Checked:
    """Make one line and hold it against the estimator, as a script would carry it."""
    made = make_line(
        summary.fingerprint, job, lambda other, gpu: registry.run(estimator, summary, other, gpu)
    )
    line = parse_line(made.text())
    low, high = -(-job.batch_size // SPAN), job.batch_size * SPAN
    batches = {low, job.batch_size, high, *(draw.randint(low, high) for _ in range(BATCHES))}
    errors = []
    for gpu in map(find_gpu, GPUS):
        here = in_environment(gpu, Environment())  # as submissions ask a line
        for batch in sorted(batches):
            full = registry.run(estimator, summary, job._replace(batch_size=batch), gpu)
            peak, request = line.memory(batch, here)
            errors.append(max(abs(peak / full.peak_mib - 1), abs(request / full.request_mib - 1)))
    return Checked(name, len(line.text()), tuple(errors))


def cases(truth: GroundTruth) -> Iterator[Tuple[str, str, TrainingJob]]:
    """Name, text and job of every text, with the first job that was measured with its model."""
    seen = set()
    for run in truth.runs:
        for tool, text in truth.texts[run.summary].items():
            if (run.summary, tool) not in seen:
                seen.add((run.summary, tool))
                yield f"{run.key} ({tool})", text, run.job


def report(found: Sequence[Checked]) -> List[str]:
    """The figures, and the lines that were farthest off."""
    errors = sorted(error for item in found for error in item.errors)
    lengths = sorted(float(item.characters) for item in found)
    within = sum(error <= TOLERANCE for error in errors) / len(errors)
    lines = [
        f"{len(found):,} lines, {len(errors):,} comparisons: {within * 100:.2f} % within "
        f"{TOLERANCE * 100:.0f} %, median {quantile(errors, 0.5) * 100:.2f} %, "
        f"P99 {quantile(errors, 0.99) * 100:.2f} %, "
        f"largest {errors[-1] * 100:.2f} %",
        f"characters: median {quantile(lengths, 0.5):.0f}, P99 {quantile(lengths, 0.99):.0f}, "
        f"longest {lengths[-1]:.0f}",
    ]
    for item in sorted(found, key=lambda item: -max(item.errors))[:5]:
        lines.append(f"  {max(item.errors) * 100:6.2f} %  {item.characters:>5} characters  {item.name}")
    return lines


def main(argv: Sequence[str]) -> int:
    """Entry point of the command."""
    parser = argparse.ArgumentParser(prog="python -m lab.score.check_lines", description=__doc__)
    parser.add_argument("--sample", type=int, metavar="N", help="number of texts to take instead of all")
    parser.add_argument("--estimator", default="auto", metavar="NAME")
    args = parser.parse_args(argv)
    draw = random.Random(SEED)
    chosen = list(cases(load_ground_truth()))
    chosen = draw.sample(chosen, args.sample) if args.sample else chosen
    found: List[Checked] = []
    for number, (name, text, job) in enumerate(chosen, 1):
        try:
            summary = summary_of(text)
            found.append(check(summary, job, args.estimator, name, draw))
        except GpumemError as error:
            print(f"{name}: {error}", file=sys.stderr)
        if sys.stderr.isatty():
            print(f"\r{number:,} of {len(chosen):,}\033[K\r", end="", file=sys.stderr, flush=True)
    print("\n".join(report(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
