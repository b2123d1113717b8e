"""The summaries that make_fixtures.py made with the real tools, and what the live models said."""

from __future__ import annotations

import functools
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

FIXTURES = Path(__file__).resolve().parent / "fixtures"


@dataclass(frozen=True)
class Saved:
    """One summary."""

    stem: str
    text: str
    tool: str
    version: str
    label: str
    model: str
    name: str
    params: int
    params_by_module: int
    trainable: int
    batch: Optional[int]
    leaf_calls: int = 0
    elements: int = 0


@functools.cache
def saved_summaries() -> Dict[str, Saved]:
    """All of them, by their file name's stem."""
    facts: Dict[str, Dict[str, Any]] = json.loads((FIXTURES / "expected.json").read_text())
    known = Saved.__dataclass_fields__
    found = {}
    with tarfile.open(FIXTURES / "summaries.tar.xz") as archive:
        # In the archive's order: an xz stream is slow to jump about in.
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            stem = member.name[: -len(".txt")]
            fields = {key: value for key, value in facts[stem].items() if key in known}
            found[stem] = Saved(stem=stem, text=content.read().decode(), **fields)
    return found


def select(**wanted: Any) -> List[Saved]:
    """Those whose fields have these values, or one of a tuple of values."""
    return [
        saved
        for saved in saved_summaries().values()
        if all(
            getattr(saved, field) in value if isinstance(value, tuple) else getattr(saved, field) == value
            for field, value in wanted.items()
        )
    ]


def one(stem: str) -> str:
    """The text of one summary."""
    return saved_summaries()[stem].text
