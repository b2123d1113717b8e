"""The record in a job's comment: what was estimated and asked, in one word.

`gpumem/1:est=12045,req=13312,by=structural,gpu=a100,batch=128,oom=requeue`, appended to what
the user wrote there. gpusbatch and the job_submit plug-in write it (lua/gpumem_read.lua is this reader's
twin); the plug-in, the hooks, recovery and the accounting read it. The job's owner can write anything there.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple, Union

from slurm_gpumem.formats.values import MOST_ITEMS, MOST_TEXT, clean, clean_name
from slurm_gpumem.formats.verdicts import VERDICTS

PREFIX = "gpumem/1:"
END_PREFIX = "gpumem-end/1:"
"""What the task epilog saw at a run's end: `gpumem-end/1:run=0,saw=oom,by=torch,need=14210`."""
MAX_COMMENT_BYTES = 1024
"""slurmctld refuses a job whose comment is longer."""
PART_NAMES = ("weights", "gradients", "optimizer", "activations", "workspace", "fragmentation", "context")
"""The parts of an estimate, in the order of the numbers in `parts=`."""

_KEY = re.compile(r"[a-z-]{1,64}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_SAID = re.compile(r"([0-9]{1,3}\.[0-9]{1,2})\+([0-9]{1,3}\.[0-9]{1,2})", re.ASCII)
_SIZES = re.compile(r"[0-9]{1,8}(?:\+[0-9]{1,8})*", re.ASCII)


class CommentRecord(NamedTuple):
    """What a job's comment says of it; a number is None and a word empty where it says nothing usable."""

    estimate_mib: Optional[int] = None
    request_mib: Optional[int] = None
    estimator: str = ""
    """"corrected", "remembered", …; "mem" where the user gave the size."""
    gpu: str = ""
    batch: Optional[int] = None
    shards: Optional[int] = None
    """0: the job is not to be shared."""
    sm: Optional[int] = None
    dram: Optional[int] = None
    """Activity alone on the GPU, in percent: predicted, or as `sm_by` says."""
    sm_by: str = ""
    """"remembered" where earlier runs measured `sm`."""
    slow: str = ""
    """The slowdown that the site allows."""
    on_oom: str = ""
    """"requeue" or "fail"."""
    model: str = ""
    fingerprint: str = ""
    optimizer: str = ""
    precision: str = ""
    variant: str = ""
    """The rarer settings in one word; empty where all are at their defaults."""
    parts: str = ""
    """The estimate's parts in MiB, in the order of PART_NAMES: "97+97+195+9948+310+495+758"."""
    mode: str = ""
    """"observe" where the site only observes."""
    retry: Optional[int] = None
    """Steps of the recovery ladder that were taken."""
    was: Optional[int] = None
    """Shards of the run before."""
    again: Optional[int] = None
    """1 when it was run again after a neighbour's fault."""
    why: str = ""
    """Why this run was started: the name of a verdict."""
    run: Optional[int] = None
    """The run that the request is for, as Slurm counts restarts."""
    need_mib: Optional[int] = None
    whole: str = ""
    """"yes" when recovery gave it a whole GPU."""
    said: str = ""
    """How many times as long as alone its owner was told it takes on a full GPU, about and at most:
    "1.90+2.00"."""
    slot: Optional[int] = None
    """Seconds of one time slot; None for a job that has none."""
    save: Optional[int] = None
    """Seconds that its longest checkpoint took."""
    slots: Optional[int] = None
    """Slots that ended with a checkpoint so far."""
    hold: Optional[int] = None
    """Of a task whose array waits for its first one's measurement: how many run at once then, 0 for any."""
    host: str = ""
    """What of the host such a task has not asked for itself: "cpus+mem"."""
    other: Tuple[Tuple[str, str], ...] = ()
    """Keys that another version knows; they are kept."""

    @property
    def runs_whole(self) -> bool:
        """Whether the job has a GPU to itself."""
        return self.shards == 0 or bool(self.whole)

    @property
    def part_sizes(self) -> Dict[str, int]:
        """MiB by the part's name; empty where the parts are not known."""
        sizes = sizes_of(self.parts)
        return dict(zip(PART_NAMES, sizes)) if len(sizes) == len(PART_NAMES) else {}


_KEYS = (
    "est", "req", "by", "gpu", "batch", "shards", "sm", "dram", "smby", "slow", "oom",
    "model", "fp", "opt", "prec", "more", "parts", "mode", "retry", "was", "again", "why", "run", "need",
    "whole", "said", "slot", "save", "slots", "hold", "host",
)  # fmt: skip
"""The comment's words for the fields of CommentRecord, in their order."""
_BUSY_PERCENT = 60
_NOTHING = CommentRecord()
_NUMBERS = {key: place for place, key in enumerate(_KEYS) if _NOTHING[place] is None}
_WORDS = {key: place for place, key in enumerate(_KEYS) if _NOTHING[place] == ""}


def is_busy(sm_percent: Optional[float]) -> bool:
    """Whether a job that keeps a GPU this active alone runs with the lower priority at one server for all
    users: it loses less by waiting than light jobs do. One whose activity nobody knows does not."""
    return sm_percent is not None and sm_percent >= _BUSY_PERCENT


def said_slowdown(text: str) -> Tuple[Optional[float], Optional[float]]:
    """About and at most, None where the text is none."""
    match = _SAID.fullmatch(text)
    return (float(match[1]), float(match[2])) if match else (None, None)


class End(NamedTuple):
    """What the task epilog saw at the end of one run."""

    run: int
    """As Slurm counts restarts: 0 is the first."""
    saw: str
    """The name of a verdict."""
    by: str = ""
    """The pattern that matched its log."""
    need_mib: Optional[int] = None
    """What it would have needed at least, where that is known."""
    save_s: Optional[int] = None
    """How long its longest checkpoint took, where it saved one."""
    used_s: Optional[int] = None
    """How long the run took; Slurm forgets that when it requeues the job."""


def format_record(record: CommentRecord) -> str:
    """The record's one word; empty values are left out, and what the format has no room for becomes "-"."""
    pairs = []
    for key, value in (*zip(_KEYS, record), *record.other):
        text = "" if value is None else _UNSAFE.sub("-", str(value)).strip("-")
        if text:
            pairs.append(f"{key}={text}")
    return PREFIX + ",".join(pairs)


def parse_record(comment: str) -> Optional[CommentRecord]:
    """The last record in a comment; None when it has none. What is no such word or number is left out."""
    for word in reversed(comment.split()):
        if word.startswith(PREFIX):
            return parse_word(word)
    return None


def parse_word(word: str) -> Optional[CommentRecord]:
    """The record of its one word, for who has nothing else; the accounting reads a million of them."""
    if not word.startswith(PREFIX):
        return None
    values: List[Any] = [*_NOTHING]
    plain = word.isascii() and word.isprintable()
    for pair in word[len(PREFIX) :].split(","):
        key, _, value = pair.partition("=")
        if not plain or len(value) > MOST_TEXT:
            value = clean(value)[:MOST_TEXT]
        if key in _WORDS:
            values[_WORDS[key]] = value
        elif key in _NUMBERS:
            values[_NUMBERS[key]] = _number(value)
        elif value and _KEY.fullmatch(key) and len(values[-1]) < MOST_ITEMS:
            values[-1] += ((key, value),)
    return CommentRecord._make(values)


def own_words(comment: str) -> str:
    """What the user wrote: the comment without our words."""
    return " ".join(word for word in comment.split(" ") if not word.startswith((PREFIX, END_PREFIX))).strip()


def append_record(comment: Optional[str], record: str) -> Optional[str]:
    """The user's comment, untouched, and the record behind it; None when Slurm has no room for both."""
    joined = f"{comment} {record}" if comment else record
    return joined if len(joined.encode("utf-8", "surrogateescape")) <= MAX_COMMENT_BYTES else None


def join_sizes(sizes: Iterable[int]) -> str:
    """Several numbers in one word: "12045+16012"."""
    return "+".join(map(str, sizes))


def sizes_of(text: str) -> Tuple[int, ...]:
    """The numbers of "12045+16012"; none where it is no such text."""
    return tuple(map(int, text.split("+"))) if _SIZES.fullmatch(text) else ()


def format_end(end: End) -> str:
    """The word for a run's end."""
    fields: Dict[str, Union[str, int, None]] = {
        "run": end.run,
        "saw": end.saw,
        "by": _UNSAFE.sub("-", end.by).strip("-"),
        "need": end.need_mib,
        "save": end.save_s,
        "used": end.used_s,
    }
    return _word(END_PREFIX, fields)


def parse_end(comment: str) -> Optional[End]:
    """The last word on a run's end in a comment; None when there is none, or it makes no sense."""
    fields = _fields(comment, END_PREFIX)
    run = _number(fields.get("run", ""))
    if run is None or fields.get("saw") not in VERDICTS:
        return None
    return End(
        run,
        fields["saw"],
        clean_name(fields.get("by", "")),
        _number(fields.get("need", "")),
        _number(fields.get("save", "")),
        _number(fields.get("used", "")),
    )


def _word(prefix: str, fields: Dict[str, Union[str, int, None]]) -> str:
    return prefix + ",".join(f"{key}={value}" for key, value in fields.items() if value not in ("", None))


def _fields(comment: str, prefix: str) -> Dict[str, str]:
    """Keys and values of the last word that begins like this."""
    word = next((word for word in reversed(comment.split()) if word.startswith(prefix)), "")
    pairs = (field.partition("=") for field in word[len(prefix) :].split(","))
    return {key: value for key, _, value in pairs}


def _number(text: str) -> Optional[int]:
    return int(text) if len(text) < 10 and text.isascii() and text.isdigit() else None
