"""A job's comment taken apart: the user's own text, the record of the submission, how the last run ended.

`gpumem/1:...` is the record. `gpumem-end/1:run=0,saw=oom,by=torch,need=14210` is what the task epilog found
about run 0; it was written with the user's own rights, so it can be trusted as far as its owner can. When the
job is requeued for it, it becomes part of the record: `retry=1,was=13,why=oom`.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from slurm_gpumem.config.kinds import Step
from slurm_gpumem.formats.comment import (
    CommentRecord,
    End,
    append_record,
    format_end,
    format_record,
    own_words,
    parse_end,
    parse_record,
)
from slurm_gpumem.formats.verdicts import NO_RUN, SAME_REQUEST, VERDICTS


class JobComment(NamedTuple):
    """The parts of a comment."""

    own: str
    """What the user wrote."""
    record: Optional[CommentRecord]
    end: Optional[End]


def parse_comment(text: str) -> JobComment:
    """Take a comment apart."""
    return JobComment(own_words(text), parse_record(text), parse_end(text))


def with_end(comment: JobComment, end: End) -> Optional[str]:
    """The comment with how the run ended; None without room for it."""
    return _joined(comment.own, comment.record, format_end(end))


def with_record(comment: JobComment, record: CommentRecord) -> Optional[str]:
    """The comment of the requeued job: the end has become part of the record."""
    return _joined(comment.own, record)


def _joined(own: str, record: Optional[CommentRecord], *words: str) -> Optional[str]:
    ours = " ".join([*([] if record is None else [format_record(record)]), *words])
    return append_record(own or None, ours) if ours else own


# Why a job is not run again.


class Refusal(NamedTuple):
    """Why it stays as it is."""

    reason: str


# The line at the end of a job's stderr: how this run ended and, if the job fails of it, what follows.

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
