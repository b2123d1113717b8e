"""Requests on GPUs that nobody calibrated, in documented contexts: `python -m lab.score.environments`.

Allocations carry over between GPUs almost exactly, so the H200's measured runs with the context of each file
of models/environments in place of their own play other machines. The estimate knows nothing of the
environment, or what people may say of it. What cuDNN chooses differently there is not in this.
"""

from __future__ import annotations

from typing import List, NamedTuple, Sequence, Tuple

from lab.command import print_lines
from lab.ground_truth import load_ground_truth, summary_of
from lab.score.figures import Answer, Figures, figures
from slurm_gpumem.estimators.environment import Measured, contexts_of, measured_environments
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.registry import run
from slurm_gpumem.estimators.types import TrainingJob
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


def sample(every: int = EVERY) -> List[Played]:
    """Every n-th measured run that has a text with all layers."""
    truth = load_ground_truth()
    own = find_gpu("h200")
    known = [own.context_bare_mib, own.context_conv_mib, own.context_matmul_mib, own.context_mib]
    found: List[Played] = []
    for one in [one for one in truth.runs if one.process_mib is not None][::every]:
        text = truth.texts[one.summary].get(TOOL)
        if text is not None and one.process_mib is not None:
            context = one.process_mib - one.reserved_mib
            nearest = min(range(len(known)), key=lambda place: abs((known[place] or 0) - context))
            found.append(Played(summary_of(text), one.job, one.reserved_mib, nearest))
    return found


def played(jobs: Sequence[Played], true: Measured, knowledge: str) -> Figures:
    """The jobs in a documented environment, estimated by who knows only so much of it."""
    gpu, contexts = find_gpu(true.gpu), contexts_of(true)
    torch = MODERN if knowledge == KNOWLEDGE[1] else ""
    loading = true.loading if knowledge == KNOWLEDGE[2] else "auto"
    answers = []
    for one in jobs:
        need = one.allocated_mib + contexts[one.libraries]
        if need <= gpu.usable_mib:  # nobody could have measured the others there
            made = run("corrected", one.summary, one.job._replace(torch=torch, module_loading=loading), gpu)
            answers.append(Answer(need, made.peak_mib, made.request_mib))
    return figures(answers)


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
                f"{name:<32} {knowledge:<24} {one.count:>4} {one.median_error * 100:>5.1f} % "
                f"{one.under_request * 100:>4.1f} % {one.capacity * 100 - 100:>4.0f} %"
            )
    return lines


if __name__ == "__main__":
    raise SystemExit(print_lines(lambda: table(sample())))
