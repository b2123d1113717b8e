"""Requests on GPUs that nobody calibrated, if their contexts are those that were documented.

    python -m lab.score.environments [--every 60]

Allocations carry over between GPUs almost exactly, so the H200's measured runs with the context of each file
of models/environments in place of their own play other machines. The estimate knows nothing of the
environment, or what people may say of it. What cuDNN chooses differently there is not in this.
"""

from __future__ import annotations

import argparse
import sys
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from lab.command import exit_code
from lab.ground_truth import MeasuredRun, load_ground_truth
from lab.score.figures import quantile
from slurm_gpumem.estimators.environment import Measured, contexts_of, measured_environments
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.registry import run
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary

EVERY = 60
MODERN = "2.6.0+cu124"
KNOWLEDGE = ("nothing", f"torch {MODERN}", "how modules are loaded")
TOOL = "torchinfo_deep"


class Played(NamedTuple):
    """A measured run that plays a job on another machine."""

    summary: ModelSummary
    job: TrainingJob
    allocated_mib: int
    libraries: int
    """Which of an environment's contexts it has: the place in `Measured.contexts`."""


class Figures(NamedTuple):
    """How estimates do in one environment; shares of the need."""

    runs: int
    median_error: float
    below: float
    over: float
    """Sum of the requests beyond the needs."""


def sample(every: int = EVERY) -> List[Played]:
    """Every n-th measured run that has a text with all layers."""
    truth = load_ground_truth()
    own = find_gpu("h200")
    known = [own.context_bare_mib, own.context_conv_mib, own.context_matmul_mib, own.context_mib]
    found: List[Played] = []
    summaries: Dict[str, ModelSummary] = {}
    for one in _with_process(truth.runs)[::every]:
        text = truth.texts[one.summary].get(TOOL)
        if text is None or one.process_mib is None:
            continue
        if one.summary not in summaries:
            summaries[one.summary] = read_summary(text)
        context = one.process_mib - one.reserved_mib
        nearest = min(range(len(known)), key=lambda place: abs((known[place] or 0) - context))
        found.append(Played(summaries[one.summary], one.job, one.reserved_mib, nearest))
    return found


def _with_process(runs: Sequence[MeasuredRun]) -> List[MeasuredRun]:
    return [one for one in runs if one.process_mib is not None]


def played(jobs: Sequence[Played], true: Measured, knowledge: str) -> Figures:
    """The jobs in a documented environment, estimated by who knows only so much of it."""
    gpu, contexts = find_gpu(true.gpu), contexts_of(true)
    torch = MODERN if knowledge == KNOWLEDGE[1] else ""
    loading = true.loading if knowledge == KNOWLEDGE[2] else "auto"
    errors, below, asked, needed = [], 0, 0, 0
    for one in jobs:
        need = one.allocated_mib + contexts[one.libraries]
        if need > gpu.usable_mib:
            continue  # nobody could have measured it there
        job = one.job.__class__(**{**vars(one.job), "torch": torch, "module_loading": loading})
        made = run("corrected", one.summary, job, gpu)
        errors.append(abs(made.peak_mib / need - 1))
        below += made.request_mib < need
        asked, needed = asked + made.request_mib, needed + need
    return Figures(len(errors), quantile(errors, 0.5), below / len(errors), asked / needed - 1)


def documented() -> List[Tuple[str, Measured]]:
    """The environments to play, by what they are called: not those that the estimate was measured in."""
    return [
        (f"{entry.gpu}, {entry.loading}, {entry.contexts[3]} MiB", entry)
        for entry in measured_environments()
        if not find_gpu(entry.gpu).measured
    ]


def table(jobs: Sequence[Played]) -> List[str]:
    """One line for each environment and what is known of it."""
    lines = [f"{'environment':<32} {'known':<24} runs  median  below  over"]
    for name, entry in documented():
        for knowledge in KNOWLEDGE:
            if knowledge == KNOWLEDGE[1] and entry.loading == "eager":
                continue  # such a PyTorch loads lazily: that would be a wrong word, not knowledge
            one = played(jobs, entry, knowledge)
            lines.append(
                f"{name:<32} {knowledge:<24} {one.runs:>4} {one.median_error * 100:>5.1f} % "
                f"{one.below * 100:>4.1f} % {one.over * 100:>4.0f} %"
            )
    return lines


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--every", type=int, default=EVERY, help=f"take every N-th run ({EVERY})")
    args = parser.parse_args(argv)
    print("\n".join(table(sample(args.every))))
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
