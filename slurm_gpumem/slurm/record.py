"""The record in a job's comment: what was estimated and asked, in one word.

`gpumem/1:est=12045,req=13312,by=structural,gpu=a100,batch=128,oom=requeue`, appended to what
the user wrote there. The job_submit plug-in, the hooks and the report read it.
"""

from __future__ import annotations

import re
from typing import Dict, Mapping, Optional, Union

PREFIX = "gpumem/1:"
MAX_COMMENT_BYTES = 1024
"""slurmctld refuses a job whose comment is longer."""

_KEY = re.compile(r"[a-z-]+")
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")


def format_record(values: Mapping[str, Union[str, int, None]]) -> str:
    """The record's one word; values lose what the format has no room for, empty ones are left out."""
    fields = []
    for key, value in values.items():
        if not _KEY.fullmatch(key):
            raise ValueError(f"not a record key: {key!r}")
        text = "" if value is None else _UNSAFE.sub("-", str(value)).strip("-")
        if text:
            fields.append(f"{key}={text}")
    return PREFIX + ",".join(fields)


def append_record(comment: Optional[str], record: str) -> Optional[str]:
    """The user's comment, untouched, and the record behind it; None when Slurm has no room for both."""
    joined = f"{comment} {record}" if comment else record
    return joined if len(joined.encode("utf-8", "surrogateescape")) <= MAX_COMMENT_BYTES else None


def parse_record(comment: str) -> Optional[Dict[str, str]]:
    """The fields of the last record in a comment; None when it has none."""
    for word in reversed(comment.split()):
        if word.startswith(PREFIX):
            pairs = (field.partition("=") for field in word[len(PREFIX) :].split(","))
            return {key: value for key, equals, value in pairs if equals and _KEY.fullmatch(key)}
    return None
