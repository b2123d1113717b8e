"""A job's comment taken apart: the user's own text, the record of the submission, how the last run ended.

`gpumem/1:...` is the record. `gpumem-end/1:run=0,saw=oom,by=torch,need=14210` is what the task epilog found
about run 0; it was written with the user's own rights, so it can be trusted as far as its owner can. When the
job is requeued for it, it becomes part of the record: `retry=1,was=13,why=oom`. `gpumem-used/1:...` is what
the run's own process reports, trusted no further.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from slurm_gpumem.formats.comment import (
    END_PREFIX,
    PREFIX,
    USED_PREFIX,
    CommentRecord,
    End,
    Used,
    append_record,
    format_end,
    format_record,
    format_used,
    parse_end,
    parse_record,
)


class JobComment(NamedTuple):
    """The parts of a comment."""

    own: str
    """What the user wrote."""
    record: Optional[CommentRecord]
    end: Optional[End]


def parse_comment(text: str) -> JobComment:
    """Take a comment apart."""
    own = (word for word in text.split(" ") if not word.startswith((PREFIX, END_PREFIX, USED_PREFIX)))
    return JobComment(" ".join(own).strip(), parse_record(text), parse_end(text))


def with_end(comment: JobComment, end: Optional[End], used: Optional[Used] = None) -> Optional[str]:
    """The comment with how the run ended and what it used, as far as it is known; None without room for it.

    Where there is no room for both, its end counts.
    """
    words = [format_end(end)] if end is not None else []
    both = _joined(comment.own, comment.record, *words, *([format_used(used)] if used is not None else []))
    return both if both is not None or end is None else _joined(comment.own, comment.record, *words)


def with_record(comment: JobComment, record: CommentRecord) -> Optional[str]:
    """The comment of the requeued job: the end has become part of the record."""
    return _joined(comment.own, record)


def _joined(own: str, record: Optional[CommentRecord], *words: str) -> Optional[str]:
    ours = " ".join([*([] if record is None else [format_record(record)]), *words])
    return append_record(own or None, ours) if ours else own
