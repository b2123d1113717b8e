"""Requests for published runs on an A100, by what is stated of the environment that they ran in.

    python -m lab.score.left_open mlp_data_step2.csv

The file is of GPUMemNet's authors (Datasets/MLP of their repository) and not kept here. The runs are traced
here, by whichever PyTorch runs this, and estimated for an A100 that nobody calibrated.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence

from lab.command import print_lines
from lab.score.figures import Answer, figures, quantile
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.registry import run
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.types import ModelSummary

EVERY = 33
STATED = {
    "nothing": "",
    "traced by a build without CUDA": "2.13.0+cpu",
    "the same, its version believed": "2.13.0",
    "torch 2.2": "2.2",
}
"""What is stated of the job's PyTorch."""


class Run(NamedTuple):
    """A published run, traced."""

    summary: ModelSummary
    batch: int
    need_mib: int


def traced_runs(path: Path, every: int = EVERY) -> List[Run]:
    """Every n-th run of the file. Needs torch."""
    from lab.gpumemnet.labels import authors_mlps
    from lab.gpumemnet.modules import traced_summary

    rows = list(authors_mlps(path))[::every]
    return [Run(traced_summary(drawn), drawn.batch, need) for drawn, need in rows]


def table(runs: Sequence[Run]) -> List[str]:
    """A line for each thing that may be stated."""
    lines = [f"{'stated':<32} runs  peak, median  below need  over need"]
    gpu = find_gpu("a100")
    for name, torch in STATED.items():
        made = [run("trace", one.summary, TrainingJob(one.batch, torch=torch), gpu) for one in runs]
        answers = [Answer(one.need_mib, got.peak_mib, got.request_mib) for one, got in zip(runs, made)]
        errors = sorted(one.error for one in answers)
        one = figures(answers)
        lines.append(
            f"{name:<32} {one.count:>4} {quantile(errors, 0.5):>+12.1%} {one.under_request:>11.0%}"
            f" {one.capacity - 1:>+10.0%}"
        )
    return lines


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("file", type=Path, help="mlp_data_step2.csv")
    args = parser.parse_args(argv)
    return print_lines(lambda: table(traced_runs(args.file)))


if __name__ == "__main__":
    sys.exit(main())
