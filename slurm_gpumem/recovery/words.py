"""Our words in a job's comment: the record, and what the task epilog saw at a run's end.

`gpumem/1:...` is the record of the submission. `gpumem-end/1:run=0,saw=oom,by=torch,need=14210` is the
task epilog's word on run 0, in the user's own name, and so worth what its owner's word is worth. When the
job is requeued for it, it becomes part of the record: `retry=1,was=13,why=oom`.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from slurm_gpumem.sharing.ladder import Step
from slurm_gpumem.slurm.record import MAX_COMMENT_BYTES, PREFIX, append_record, format_record, parse_record

END_PREFIX = "gpumem-end/1:"
OOM, NEIGHBOUR, HOST = "oom", "neighbour", "host"
WHOLE = "whole"


class End(NamedTuple):
    """What the task epilog saw at the end of one run."""

    run: int
    saw: str
    """"oom", "neighbour" or "host"."""
    by: str = ""
    need_mib: Optional[int] = None
    """What it would have needed at least, where that is known."""


class Words(NamedTuple):
    """A comment taken apart."""

    own: str
    """What the user wrote."""
    record: Optional[Dict[str, str]]
    end: Optional[End]

    def number(self, key: str) -> int:
        """A number of the record; 0 when it has none."""
        return _number((self.record or {}).get(key, "")) or 0

    @property
    def runs_whole(self) -> bool:
        """Whether the job has a GPU to itself already, by our own record."""
        record = self.record or {}
        return record.get("shards") == "0" or WHOLE in record


def read_words(comment: str) -> Words:
    """Take a comment apart."""
    record, end = parse_record(comment), None
    own: List[str] = []
    for word in comment.split(" "):
        if word.startswith(END_PREFIX):
            end = _end(word)
        elif not word.startswith(PREFIX):
            own.append(word)
    return Words(" ".join(own).strip(), record, end)


def with_end(words: Words, end: End) -> Optional[str]:
    """The comment with what was seen; None when Slurm has no room for it."""
    fields: Dict[str, object] = {"run": end.run, "saw": end.saw, "by": end.by, "need": end.need_mib}
    said = (
        END_PREFIX
        + format_record({key: str(value) for key, value in fields.items() if value is not None}).partition(
            ":"
        )[2]
    )
    return _joined(words.own, words.record, said)


def with_retry(words: Words, changes: Mapping[str, object]) -> Optional[str]:
    """The comment of the requeued job: the end that was seen has become part of the record."""
    record = {**(words.record or {}), **{key: str(value) for key, value in changes.items()}}
    return _joined(words.own, record, "")


def advice(end: End, words: Words, ladder: Sequence[Step], *, enabled: bool, default: str) -> Optional[str]:
    """The line for the end of the job's stderr: what happened and, if the job fails of it, what follows."""
    if end.saw == HOST:
        return "gpumem: host memory ran out, not GPU memory; it is not run again. Ask for more with --mem."
    agreed = enabled and (words.record or {}).get("oom", default) == "requeue"
    if end.saw == NEIGHBOUR:
        again = agreed and not words.number("again")
        what = "if it failed, Slurm runs it again as it was" if again else "it is not run again"
        return f"gpumem: a fault in another job on this GPU ended this run; {what}."
    what = f"gpumem: this run ended out of GPU memory ({end.by})"
    taken = words.number("retry")
    if words.runs_whole:
        return f"{what} on a whole GPU; there is no larger one to try, so it is not run again."
    if taken >= len(ladder):
        return f"{what} at the last step of this site's recovery; it is not run again."
    if not agreed:
        return f"{what}; it is not run again (on-oom=requeue would)."
    step = ladder[taken]
    more = "a whole GPU" if step.margin_percent is None else f"{step.margin_percent} % more"
    return f"{what}; if it failed, Slurm runs it again with {more}."


def _joined(own: str, record: Optional[Mapping[str, str]], end: str) -> Optional[str]:
    parts = [format_record(dict(record))] if record else []
    parts += [end] if end else []
    comment = append_record(own or None, " ".join(parts)) if parts else own
    return comment if comment is not None and len(comment.encode()) <= MAX_COMMENT_BYTES else None


def _end(word: str) -> Optional[End]:
    pairs = (field.partition("=") for field in word[len(END_PREFIX) :].split(","))
    fields = {key: value for key, _, value in pairs}
    run = _number(fields.get("run", ""))
    if run is None or fields.get("saw") not in (OOM, NEIGHBOUR, HOST):
        return None
    return End(run, fields["saw"], fields.get("by", ""), _number(fields.get("need", "")))


def _number(text: str) -> Optional[int]:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
