"""A job's comment taken apart: the user's own text, the record of the submission, how the last run ended.

`gpumem/1:...` is the record. `gpumem-end/1:run=0,saw=oom,by=torch,need=14210` is what the task epilog found
about run 0; it was written with the user's own rights, so it can be trusted as far as its owner can. When the
job is requeued for it, it becomes part of the record: `retry=1,was=13,why=oom`.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from slurm_gpumem.formats.comment import (
    END_PREFIX,
    PREFIX,
    CommentRecord,
    End,
    append_record,
    format_end,
    format_record,
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
    own = (word for word in text.split(" ") if not word.startswith((PREFIX, END_PREFIX)))
    return JobComment(" ".join(own).strip(), parse_record(text), parse_end(text))


def with_end(comment: JobComment, end: End) -> Optional[str]:
    """The comment with how the run ended; None without room for it."""
    return _joined(comment.own, comment.record, format_end(end))


def with_record(comment: JobComment, record: CommentRecord) -> Optional[str]:
    """The comment of the requeued job: the end has become part of the record."""
    return _joined(comment.own, record)


def _joined(own: str, record: Optional[CommentRecord], *words: str) -> Optional[str]:
    ours = " ".join([*([] if record is None else [format_record(record)]), *words])
    return append_record(own or None, ours) if ours else own
