"""Estimates of stored texts and traces are what they were, to the MiB and to the word.

The rows of data/exact.tsv run, twice, whatever any of 900 such estimates runs. Where a change is meant,
`WRITE=1 .venv/bin/python -m pytest tests/estimators/test_exact.py` keeps it; a new row needs no last column.
"""

from __future__ import annotations

import json
import os
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from lab.places import GROUND_TRUTH, OWN_TRACES
from lab.rows import open_text
from slurm_gpumem import estimate
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.summaries.reader import read_summary
from tests.support.measured_texts import texts_in

_KEPT = Path(__file__).parent / "data" / "exact.tsv"
_PARTS = 20


@cache
def _traces() -> Dict[str, str]:
    """Those of the table, by key."""
    with open_text(OWN_TRACES) as file:
        wanted = {row[1] for row in _table() if row[0] == "trace"}
        found = ([*line.split('"', 4)[3:], line] for line in file)
        return {key: json.loads(line)["trace"] for key, _, line in found if key in wanted}


@cache
def _table() -> List[List[str]]:
    rows = [line.split("\t") for line in _KEPT.read_text().splitlines()]
    return sorted(rows, key=lambda row: row[0] == "trace")


def _plain(value: Any) -> Any:
    """With no digit of a number that another processor might give otherwise."""
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _found(model: str, tool: str, about: str) -> Tuple[str, str]:
    """What is kept, and the text behind its digest."""
    text = _traces()[tool] if model == "trace" else texts_in(GROUND_TRUTH)[model][tool]
    try:
        found = estimate(read_summary(text), **json.loads(about))
    except GpumemError as error:
        return f"{type(error).__name__} {sha256(str(error).encode()).hexdigest()[:8]}", str(error)
    whole = json.dumps(_plain(found), sort_keys=True)
    numbers = " ".join(f"{name}={size}" for name, size in found.parts.items())
    digest = sha256(whole.encode()).hexdigest()[:8]
    return f"{found.peak_mib} {found.request_mib} {found.floor_mib} {numbers} {digest}", whole


@pytest.mark.parametrize("part", range(_PARTS))
def test_an_estimate_is_what_it_was(part: int) -> None:
    if "WRITE" in os.environ and part == 0:
        lines = ["\t".join((*row[:3], _found(*row[:3])[0])) + "\n" for row in _table()]
        _KEPT.write_text("".join(sorted(lines)))
        _table.cache_clear()
    for model, tool, about, *kept in _table()[part * len(_table()) // _PARTS :][
        : len(_table()) // _PARTS + 1
    ]:
        row, whole = _found(model, tool, about)
        assert kept == [row], (model, tool, about, whole)
