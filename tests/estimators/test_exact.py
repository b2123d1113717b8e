"""Estimates of stored texts and traces are what they were, to the MiB and to the word.

Where a change of them is meant, `WRITE=1 .venv/bin/python -m pytest tests/estimators/test_exact.py` keeps it.
"""

from __future__ import annotations

import json
import os
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest

from lab.places import GROUND_TRUTH, OWN_TRACES
from lab.rows import open_text
from slurm_gpumem import estimate
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.estimators.registry import ESTIMATORS
from slurm_gpumem.estimators.types import LOSSES, OPTIMIZERS, PRECISIONS
from slurm_gpumem.summaries.reader import read_summary
from tests.support.measured_texts import texts_in

_KEPT = Path(__file__).parent / "data" / "exact.tsv"
_GPUS = (
    "h200",
    "a100",
    "l4",
    "p100",
    "rtx3090",
    "v100",
    "t4",
    "h100",
    "b200",
    "gtx1080",
    "a100-80gb",
    "l40s",
)
_PARTS = 16


def _job(number: int) -> Dict[str, Any]:
    """Cycles of lengths that have no factor in common, so that options meet in ever new ways."""
    about: Dict[str, Any] = {
        "batch_size": (8, 1, 64, 7, 32)[number % 5],
        "optimizer": tuple(OPTIMIZERS)[number % len(OPTIMIZERS)],
        "precision": PRECISIONS[number // 2 % len(PRECISIONS)],
        "gpu": _GPUS[number % len(_GPUS)],
    }
    others = {
        "gpus": 2, "grad_accumulation": 4, "checkpointing": True, "channels_last": True, "coverage": 0.9,
        "loss": LOSSES[number % 3], "torch": ("2.0.1", "1.13", "2.6.0+cu124")[number % 3], "input": "3x64x64",
        "input_dtype": "uint8", "module_loading": "eager",
        "estimator": tuple(ESTIMATORS)[number % len(ESTIMATORS)],
    }  # fmt: skip
    for place, (name, value) in enumerate(others.items()):
        if (number + place) % 11 == 0 or number % 7 == place:
            about[name] = value
    return about


@cache
def _cases() -> List[Tuple[str, str, Dict[str, Any]]]:
    texts = texts_in(GROUND_TRUTH)
    found = [(f"{model} {tool}", text) for model in list(texts)[::45] for tool, text in texts[model].items()]
    cases = [(name, text, _job(number)) for number, (name, text) in enumerate(found)]
    with open_text(OWN_TRACES) as file:
        rows = [json.loads(line) for number, line in enumerate(file) if number % 45 == 0]
    for number, row in enumerate(rows):
        traced = {"gpu": _GPUS[number % len(_GPUS)]}
        more: List[Dict[str, Any]] = [{}, {"batch_size": 24}, {"gpus": 4}, {"coverage": 0.99}]
        cases.append((f"trace {row['key']}", row["trace"], {**traced, **more[number % 4]}))
    return cases


def _plain(value: Any) -> Any:
    """With no digit of a number that another processor might give otherwise."""
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _row(text: str, about: Dict[str, Any]) -> Tuple[str, str]:
    """What is kept, and the text behind its digest."""
    try:
        found = estimate(read_summary(text), **about)
    except GpumemError as error:
        return f"{type(error).__name__} {sha256(str(error).encode()).hexdigest()[:8]}", str(error)
    whole = json.dumps(_plain(found), sort_keys=True)
    numbers = " ".join(f"{name}={size}" for name, size in found.parts.items())
    digest = sha256(whole.encode()).hexdigest()[:8]
    return f"{found.peak_mib} {found.request_mib} {found.floor_mib} {numbers} {digest}", whole


def _rows(part: int) -> Iterator[Tuple[str, str, str]]:
    for name, text, about in _cases()[part::_PARTS]:
        row, whole = _row(text, about)
        words = " ".join(f"{key}={value}" for key, value in about.items())
        yield f"{name} {words}", row, whole


@cache
def _kept() -> Dict[str, str]:
    if "WRITE" in os.environ:
        rows = sorted(f"{name}\t{row}\n" for part in range(_PARTS) for name, row, _ in _rows(part))
        _KEPT.write_text("".join(rows))
    return dict(line.split("\t") for line in _KEPT.read_text().splitlines())


@pytest.mark.parametrize("part", range(_PARTS))
def test_an_estimate_is_what_it_was(part: int) -> None:
    for name, row, whole in _rows(part):
        assert _kept()[name] == row, whole
