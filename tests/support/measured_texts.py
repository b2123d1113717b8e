"""Texts of measured models; a folder's are read once in a process: unpacking them takes seconds."""

from __future__ import annotations

import json
from functools import cache, lru_cache
from pathlib import Path
from typing import Dict

from lab.ground_truth import load_texts
from lab.places import GROUND_TRUTH
from lab.rows import open_text


@lru_cache(maxsize=1)
def texts_in(folder: Path) -> Dict[str, Dict[str, str]]:
    """Summary key → tool → text."""
    return load_texts([folder])


@cache
def texts_of(model: str) -> Dict[str, str]:
    """Tool → text of one model of the ground truth; no other is taken apart."""
    with open_text(GROUND_TRUTH / "summaries.jsonl.xz") as file:
        found: Dict[str, str] = json.loads(next(line for line in file if f'"{model}"' in line[:200]))
    return found
