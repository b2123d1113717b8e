"""The line at the end of a job's stderr: how this run ended and, if the job fails of it, what follows."""

from __future__ import annotations

from typing import Optional, Sequence

from slurm_gpumem.config.ladder import Step
from slurm_gpumem.formats.comment import CommentRecord, End
from slurm_gpumem.formats.verdicts import NO_RUN, SAME_REQUEST, VERDICTS
from slurm_gpumem.recovery.job_comment import JobComment

RUN_ENDED = "gpumem: this run ended"
"""How the line begins; what comes after it in a log is the next run's."""


def end_message(
    end: End,
    comment: JobComment,
    ladder: Sequence[Step],
    *,
    enabled: bool,
    on_instance: bool = False,
    type_can_change: bool = True,
) -> Optional[str]:
    """What happened and what recovery does about it.

    `on_instance`: it ran on a MIG instance, above which there are larger ones, then whole GPUs: other types.
    """
    verdict = VERDICTS[end.saw]
    what = f"{RUN_ENDED} {verdict.ended}"
    if verdict.next_run == NO_RUN:
        return f"{what}; it is not run again. {verdict.advice}".rstrip()
    record = comment.record or CommentRecord()
    agreed = enabled and record.on_oom == "requeue"
    if verdict.next_run == SAME_REQUEST:
        again = agreed and not record.again
        return f"{what}; {'if it failed, Slurm runs it again as it was' if again else 'it is not run again'}."
    what = f"{what} ({end.by})"
    taken = record.retry or 0
    if record.runs_whole and not on_instance:
        return f"{what} on a whole GPU; there is no larger one to try, so it is not run again."
    if taken >= len(ladder):
        return f"{what} at the last step of this site's recovery; it is not run again."
    if not agreed:
        return f"{what}; it is not run again (on-oom=requeue would)."
    if on_instance and not type_can_change:
        return f"{what}; this Slurm cannot change its GPU type, so it is not run again: ask for a larger one."
    more = "a larger MIG instance or GPU" if on_instance else _more(ladder[taken])
    return f"{what}; if it failed, Slurm runs it again with {more} if limits allow it."


def _more(step: Step) -> str:
    if step.margin_percent is None:
        return "a whole GPU"
    return "more memory" if step.by_need else f"{step.margin_percent} % more"
