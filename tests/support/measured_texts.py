"""Texts of measured models; a folder's are read once in a process: unpacking them takes seconds."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Dict

from lab.ground_truth import load_texts
from lab.places import GROUND_TRUTH


@lru_cache(maxsize=2)
def texts_in(folder: Path = GROUND_TRUTH) -> Dict[str, Dict[str, str]]:
    """Summary key → tool → text."""
    return load_texts([folder])
