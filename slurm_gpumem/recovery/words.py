"""Our words in a job's comment: the record, and what the task epilog saw at a run's end.

`gpumem/1:...` is the record of the submission. `gpumem-end/1:run=0,saw=oom,by=torch,need=14210` is the
task epilog's word on run 0, in the user's own name, and so worth what its owner's word is worth. When the
job is requeued for it, it becomes part of the record: `retry=1,was=13,why=oom`.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from slurm_gpumem.formats.comment import (
    END_PREFIX,
    HOST,
    NEIGHBOUR,
    PREFIX,
    CommentRecord,
    End,
    append_record,
    format_end,
    format_record,
    parse_end,
    parse_record,
)
from slurm_gpumem.submission.ladder import Step

RUN_ENDED = "gpumem: this run ended"
"""How our line at the end of a run begins; what stands after it in a log is the next run's."""


class Words(NamedTuple):
    """A comment taken apart."""

    own: str
    """What the user wrote."""
    record: Optional[CommentRecord]
    end: Optional[End]


def read_words(comment: str) -> Words:
    """Take a comment apart."""
    own = (word for word in comment.split(" ") if not word.startswith((PREFIX, END_PREFIX)))
    return Words(" ".join(own).strip(), parse_record(comment), parse_end(comment))


def with_end(words: Words, end: End) -> Optional[str]:
    """The comment with what was seen; None when Slurm has no room for it."""
    return _joined(words.own, words.record, format_end(end))


def with_record(words: Words, record: CommentRecord) -> Optional[str]:
    """The comment of the requeued job: the end that was seen has become part of the record."""
    return _joined(words.own, record, "")


def advice(end: End, words: Words, ladder: Sequence[Step], *, enabled: bool, default: str) -> Optional[str]:
    """The line for the end of the job's stderr: what happened and, if the job fails of it, what follows."""
    if end.saw == HOST:
        return (
            f"{RUN_ENDED} out of host memory, not GPU memory; it is not run again. Ask for more with --mem."
        )
    record = words.record or CommentRecord()
    agreed = enabled and (record.on_oom or default) == "requeue"
    if end.saw == NEIGHBOUR:
        again = agreed and not record.again
        what = "if it failed, Slurm runs it again as it was" if again else "it is not run again"
        return f"{RUN_ENDED} by a fault in another job on this GPU; {what}."
    what = f"{RUN_ENDED} out of GPU memory ({end.by})"
    taken = record.retry or 0
    if record.runs_whole:
        return f"{what} on a whole GPU; there is no larger one to try, so it is not run again."
    if taken >= len(ladder):
        return f"{what} at the last step of this site's recovery; it is not run again."
    if not agreed:
        return f"{what}; it is not run again (on-oom=requeue would)."
    step = ladder[taken]
    more = "a whole GPU" if step.margin_percent is None else f"{step.margin_percent} % more"
    return f"{what}; if it failed, Slurm runs it again with {more}."


def _joined(own: str, record: Optional[CommentRecord], end: str) -> Optional[str]:
    ours = " ".join(word for word in ("" if record is None else format_record(record), end) if word)
    return append_record(own or None, ours) if ours else own
