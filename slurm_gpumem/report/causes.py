"""What happened to a job, in one sentence, and what to type next: one row for each cause.

`gpumem report JOB` and the mail at a job's end both say it. The rows are tried in order; the first that fits
counts, so what is known for sure stands before what is only near.
"""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.accounting.types import Attempt
from slurm_gpumem.formats.job_record import CROWDED, OVERRUN
from slurm_gpumem.formats.verdicts import (
    GPU_FAULT,
    HOST,
    IDLE_ENDED,
    NEAR_LIMIT,
    NEIGHBOUR,
    NEIGHBOUR_FAULT,
    OWN_FAULT,
    REPEATED_FAULT,
)
from slurm_gpumem.text import printable
from slurm_gpumem.units import about_time, ceil_div, format_mib


class Cause(NamedTuple):
    """Why a job ended as it did."""

    said: str
    """One sentence."""
    next: str
    """What to type now; "" where nothing is to be done."""


class _Job(NamedTuple):
    """What the rows look at."""

    state: str
    last: Attempt
    """The last run; of several nodes the one that says why."""
    before: Optional[Attempt]
    """The last run before it that ran out of memory."""

    def has(self, *words: str) -> bool:
        """Whether events, hints or verdict of the last run have one of these."""
        return not {*self.last.events, *self.last.hints, self.last.verdict}.isdisjoint(words)

    @property
    def limit(self) -> str:
        return format_mib(self.last.limit_mib) if self.last.limit_mib else "its GPU"

    @property
    def peak(self) -> str:
        return "an unknown amount" if self.last.peak_mib is None else format_mib(self.last.peak_mib)

    @property
    def code(self) -> str:
        signal, code = self.last.signal, self.last.exit_code
        return f"signal {signal}" if signal else "an error" if code is None else f"exit code {code}"


_Words = Callable[[_Job], str]
_AGAIN = "sbatch SCRIPT: as it was"
_DEBUG = "CUDA_LAUNCH_BLOCKING=1 in the script, to see where; it is not the memory"
_ROWS: Tuple[Tuple[Callable[[_Job], bool], _Words, _Words], ...] = (
    (
        lambda job: job.state == "COMPLETED" and job.before is not None,
        lambda job: (
            f"It ran out of its {format_mib((job.before or job.last).limit_mib or 0)} and completed "
            f"with {job.limit if job.last.shards else 'a whole GPU'}."
        ),
        lambda job: f"{_ask(job.last.peak_mib)} next time",
    ),
    (lambda job: job.state in ("COMPLETED", "RUNNING"), lambda job: "", lambda job: ""),
    (
        lambda job: job.has(OVERRUN),
        lambda job: f"It was ended because it took {job.peak} of its {job.limit} beside other jobs.",
        lambda job: _ask(job.last.peak_mib, 1.25),
    ),
    (
        lambda job: job.has(IDLE_ENDED),
        lambda job: f"It was cancelled because its GPU was idle for {about_time(job.last.idle_for_s or 0)}.",
        lambda job: (
            'python -c "import torch; print(torch.cuda.is_available())" in the job: does it see the GPU?'
        ),
    ),
    (
        lambda job: job.last.oom and not job.last.shards,
        lambda job: f"It ran out of GPU memory on a whole GPU, at {job.peak}.",
        lambda job: "gpumem fit MODEL: the largest batch that fits",
    ),
    (
        lambda job: job.last.oom,
        lambda job: (
            f"It ran out of its {job.limit} of GPU memory"
            f"{', again after it was given more' if job.before else ''}."
        ),
        lambda job: _ask(job.last.limit_mib, 2),
    ),
    (
        lambda job: job.has(CROWDED) and job.has(NEIGHBOUR),
        lambda job: "It was refused memory of its own share, because another job took more than its own.",
        lambda job: _AGAIN,
    ),
    (
        lambda job: job.has(REPEATED_FAULT),
        lambda job: "A GPU fault ended it, again together with a job that was there the last time.",
        lambda job: "gpusbatch --exclusive-gpu SCRIPT: alone on a GPU",
    ),
    (
        lambda job: job.has(NEIGHBOUR, NEIGHBOUR_FAULT),
        lambda job: "A GPU fault ended it and jobs beside it; whose it was nobody can tell.",
        lambda job: _AGAIN,
    ),
    (
        lambda job: job.has(OWN_FAULT),
        lambda job: "A GPU fault of its own ended it: no other job was hit.",
        lambda job: _DEBUG,
    ),
    (
        lambda job: job.has(GPU_FAULT),
        lambda job: "Its GPU failed, by an error that programs do not cause.",
        lambda job: f"{_AGAIN}, and tell your administrators of {job.last.node}",
    ),
    (
        lambda job: job.has(HOST),
        lambda job: "It ran out of host memory, not GPU memory.",
        lambda job: "sbatch --mem=SIZE SCRIPT: with more than it had",
    ),
    (
        lambda job: job.has(NEAR_LIMIT),
        lambda job: f"It failed ({job.code}) at {job.peak} of its {job.limit}: perhaps out of GPU memory.",
        lambda job: f"{_ask(job.last.limit_mib, 1.5)}, if its log says so",
    ),
    (
        lambda job: job.state == "TIMEOUT",
        lambda job: "It reached its time limit.",
        lambda job: "sbatch --time=TIME SCRIPT, or in slots (gpumem docs slots)",
    ),
    (
        lambda job: job.state.endswith("_FAIL"),
        lambda job: f"Its node {job.last.node} failed.",
        lambda job: _AGAIN,
    ),
    (lambda job: job.state == "PREEMPTED", lambda job: "It was preempted.", lambda job: _AGAIN),
    (
        lambda job: job.state == "FAILED",
        lambda job: f"Its program ended with {job.code}, at {job.peak} of its {job.limit}.",
        lambda job: "its log says why: nothing that was measured does",
    ),
)


def cause_of(state: str, runs: Sequence[Attempt]) -> Cause:
    """Why the job ended as it did; nothing is said of one that runs, or went as it should."""
    if not runs:
        return Cause("", "")
    number = max(run.restarts for run in runs)
    last = [run for run in runs if run.restarts == number]
    # Of several nodes one knows why: the others only lost their tasks.
    telling = max(last, key=lambda run: (run.oom, len(run.events), len(run.hints), bool(run.verdict)))
    before = [run for run in runs if run.restarts < number and run.oom]
    job = _Job(state, telling, before[-1] if before else None)
    for fits, said, following in _ROWS:
        if fits(job):
            return Cause(printable(said(job)), following(job))
    return Cause("", "")


def cause_lines(cause: Cause) -> Tuple[str, ...]:
    """For people."""
    return tuple(filter(None, (cause.said, f"next: {cause.next}" if cause.next else "")))


def _ask(mib: Optional[float], times: float = 1.0) -> str:
    """The submission with that much and no less than a GiB."""
    if not mib:
        return "gpusbatch --trace SCRIPT"
    return f"gpusbatch --gpu-mem {ceil_div(round(mib * times), 1024)}G SCRIPT"
