"""A long summary is read in milliseconds, and only the parser that is needed is loaded."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Callable

import pytest

from slurm_gpumem.summaries.detect import parse
from tests.summaries.saved_summaries import one

LIMIT_S = 0.020
LINES = 2000
# Seconds that a million rounds of an empty loop take on the machine for which the limit is meant.
REFERENCE_LOOP_S = 0.025


def best(body: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        start = time.process_time()
        body()
        taken.append(time.process_time() - start)
    return min(taken)


def loop() -> None:
    for _ in range(1_000_000):
        pass


def grown(stem: str) -> str:
    """A summary of 2,000 lines: the rows of a real one, repeated."""
    lines = one(stem).rstrip("\n").split("\n")
    head, tail = lines[:6], lines[-12:]
    rows = lines[6:-12]
    return "\n".join([*head, *(rows * (LINES // len(rows) + 1))[: LINES - 18], *tail])


@pytest.mark.parametrize(
    "stem",
    [
        "torchinfo-1.8.0-depth20-resnet50",
        "torchinfo-1.8.0-full-resnet50",
        "torchsummary-1.5.1-open-resnet50",
        "keras-3.15.1-box-resnet50",
        "keras-2.15.0-plain-resnet50",
        "print-torch-print-resnet50",
    ],
)
def test_2000_lines_take_20_ms(stem: str) -> None:
    text = grown(stem)
    assert len(text.split("\n")) == LINES
    # A slow machine gets more time in proportion, and a busy one half as much again for its cold caches.
    slowness = 1.5 * max(1.0, best(loop, 3) / REFERENCE_LOOP_S)
    assert best(lambda: parse(text, origin="long"), 8) < LIMIT_S * slowness


def test_only_the_needed_parser_is_loaded() -> None:
    code = (
        "import sys; from slurm_gpumem.summaries.detect import parse; parse(sys.stdin.read(), origin='x');"
        "print(*sorted(m.rpartition('.')[2] for m in sys.modules if m.startswith('slurm_gpumem.summaries.')))"
    )
    text = one("torchinfo-1.8.0-depth20-resnet18")
    result = subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True
    )
    loaded = set(result.stdout.split())
    assert "torchinfo" in loaded
    assert not loaded & {"torchsummary", "keras", "printed", "printed_params", "refuse", "fingerprint"}
