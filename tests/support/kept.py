"""What is shown, exactly as it was; where a change of it is meant, the test run with WRITE=1 keeps it."""

from __future__ import annotations

import dataclasses
import json
import os
from array import array
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any, Dict, Mapping


def assert_kept(file: Path, shown: Mapping[str, str]) -> None:
    """Texts by name as the file has them: short ones whole, long ones by their digests."""
    kept: Dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    if "WRITE" in os.environ:
        kept.update({name: _short(text) for name, text in shown.items()})
        file.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")
    assert {name: text for name, text in shown.items() if _short(text) != kept.get(name)} == {}


def _short(text: str) -> str:
    return text if len(text) <= 100 else sha256(text.encode()).hexdigest()[:12]


def plain(value: Any) -> Any:
    """All that it has, in an order of its own; of a number no digit that another processor might give."""
    if isinstance(value, bool) or value is None or isinstance(value, (int, str, bytes)):
        return value
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, BaseException):
        own, theirs = str(value), str(value.__cause__ or value.__context__ or "")
        return f"{type(value).__name__} {own.replace(theirs, '…') if theirs else own}"  # as Python says it
    if isinstance(value, Mapping):
        return {plain(name) if isinstance(name, (str, int)) else repr(plain(name)): plain(one)
                for name, one in value.items()}  # fmt: skip
    if isinstance(value, (set, frozenset)):
        return sorted(repr(plain(one)) for one in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return {name: plain(one) for name, one in value._asdict().items()}
    if isinstance(value, (list, tuple, array)):
        return [plain(one) for one in value]
    if hasattr(value, "__slots__") and not hasattr(value, "__dict__"):
        return [plain(getattr(value, name)) for name in value.__slots__ if hasattr(value, name)]
    if isinstance(value, Path) or not hasattr(value, "__dict__"):
        return str(value)
    return value.__qualname__ if callable(value) else plain(vars(value))
