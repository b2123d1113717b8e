"""How much of its speed alone each job had beside the others of a GPU, from what the GPU was seen to do.

A step needs the same work of the multiprocessors wherever it runs. So while all jobs of a GPU train, the
GPU's activity is the sum of each one's activity alone times its speed:

    speed = the GPU's activity / sum of the jobs' activities alone

as one figure for all of them: who of them lost more is not seen. While all train, the GPU is at least as
active as the most active of them would be alone, or as they are in the mean where they take turns. Where it
was less, they waited for something else in that part of the time (input, a checkpoint), and neighbours cost
them nothing then.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional

from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.job_record import BASES, PREDICTED, REMEMBERED

LEAST_ALONE_S = 10.0
"""Activity of a job that had the GPU to itself counts as measured from this time on."""
TRAINS_FROM = 0.25
"""A job that holds less than this part of its estimated peak has not begun its steps yet."""
IDLE_BELOW = 0.01
"""SM activity, or the part of time with any kernel, of a GPU that does nothing."""
_LEAST_ACTIVITY = 0.02


class Alone(NamedTuple):
    """A job's activity with the GPU to itself, a part of 1, and where that is known from."""

    activity: float
    basis: str


def claimed_alone(claim: CommentRecord) -> Optional[Alone]:
    """What the job's comment says of it."""
    if claim.sm is None:
        return None
    return Alone(claim.sm / 100, REMEMBERED if claim.sm_by == REMEMBERED else PREDICTED)


def speed_beside(
    training: Mapping[int, Optional[Alone]], activity: Optional[float], *, turns: bool = False
) -> Optional[float]:
    """The speed of each of these jobs as a part of its speed alone; None where it cannot be known."""
    if len(training) < 2:
        return 1.0
    # A comment may say anything.
    known = [max(_LEAST_ACTIVITY, min(1.0, alone.activity)) for alone in training.values() if alone]
    if activity is None or len(known) < len(training):
        return None
    least = sum(known) / len(known) if turns else max(known)
    together = min(1.0, activity / least)
    return 1.0 - together * (1.0 - min(1.0, activity / sum(known)))


def trains(mib: Optional[float], estimate_mib: Optional[int]) -> bool:
    """Whether a job that holds that much memory has begun its steps."""
    return mib is None or estimate_mib is None or mib >= TRAINS_FROM * estimate_mib


def weakest_basis(training: Mapping[int, Optional[Alone]]) -> str:
    """Where what is said of jobs side by side is known from; "" of one job, or where nothing is known."""
    if len(training) < 2:
        return ""
    return max((alone.basis for alone in training.values() if alone), key=BASES.index, default="")
