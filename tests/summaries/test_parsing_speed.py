"""A long summary is read in milliseconds, and only the parser that is needed is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slurm_gpumem.summaries.reader import parse
from tests.summaries.saved_summaries import one
from tests.support.timing import best_cpu_s, slowness

LIMIT_S = 0.020
LINES = 2000


def grown(stem: str) -> str:
    """A summary of 2,000 lines: the rows of a real one, repeated."""
    lines = one(stem).rstrip("\n").split("\n")
    head, tail = lines[:6], lines[-12:]
    rows = lines[6:-12]
    return "\n".join([*head, *(rows * (LINES // len(rows) + 1))[: LINES - 18], *tail])


@pytest.mark.timing
@pytest.mark.parametrize(
    "stem",
    [
        "torchinfo-1.8.0-depth20-resnet50",
        "torchinfo-1.8.0-full-resnet50",
        "torchsummary-1.5.1-open-resnet50",
        "print-torch-print-resnet50",
    ],
)
def test_2000_lines_take_20_ms(stem: str) -> None:
    text = grown(stem)
    assert len(text.split("\n")) == LINES
    assert best_cpu_s(lambda: parse(text, origin="long"), 8) < LIMIT_S * slowness()


def test_only_the_needed_parser_is_loaded() -> None:
    code = (
        "import sys; from slurm_gpumem.summaries.reader import parse; parse(sys.stdin.read(), origin='x');"
        "print(*sorted(m.rpartition('.')[2] for m in sys.modules if m.startswith('slurm_gpumem.summaries.')))"
    )
    text = one("torchinfo-1.8.0-depth20-resnet18")
    result = subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, text=True, check=True
    )
    loaded = set(result.stdout.split())
    assert "torchinfo" in loaded
    assert not loaded & {"torchsummary", "printed", "printed_params", "refuse", "fingerprint"}
