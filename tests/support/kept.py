"""What is shown, exactly as it was; where a change of it is meant, the test run with WRITE=1 keeps it."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Dict, Mapping


def assert_kept(file: Path, shown: Mapping[str, str]) -> None:
    """Texts by name as the file has them: short ones whole, long ones by their digests."""
    kept: Dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    if "WRITE" in os.environ:
        kept.update({name: _short(text) for name, text in shown.items()})
        file.write_text(json.dumps(kept, indent=0, sort_keys=True) + "\n")
    assert {name: text for name, text in shown.items() if _short(text) != kept.get(name)} == {}


def _short(text: str) -> str:
    return text if len(text) <= 100 else sha256(text.encode()).hexdigest()[:12]
