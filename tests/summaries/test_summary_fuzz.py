"""Random damage and random text never bring out anything but a summary or a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.report.estimate import describe_model
from slurm_gpumem.summaries.reader import parse
from slurm_gpumem.summaries.types import UNKNOWN_KIND, ModelSummary
from tests.summaries import fuzz
from tests.summaries.saved_summaries import saved_summaries
from tests.support.kept import assert_kept, plain

STEMS = sorted(stem for stem, saved in saved_summaries().items() if saved.tool != "keras")
WORDS = st.sampled_from(
    ["Layer (type)", "Layer (type:depth-idx)", "Output Shape", "Param #", "=" * 40, "├─Conv2d: 1-1",
     "Conv2d-1", "[", "]", "[1, 2]", "(None, 3)", "9,408", "--", "(recursive)", "Net(", "(a): Linear(", ")",
     "│", "┃", "\n", "Total params: 7", "conv (Conv2D)", "Forward/backward pass size (MB): "]
)  # fmt: skip


def test_mutated_real_summaries_are_read_or_refused_as_they_were() -> None:
    said: Dict[str, str] = {}

    def note(seed: int, answer: Any) -> None:
        name, told = f"seeds {seed // 20 * 20}…", repr(plain(answer))
        if isinstance(answer, ModelSummary):
            told += repr((answer.fingerprint, describe_model(answer)))
        said[name] = said.get(name, "") + f"{seed}: {told}\n"

    assert fuzz.run(range(1400), note) == []
    assert_kept(Path(__file__).parent / "fixtures" / "damaged.json", said)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert fuzz.failure_of(text) is None


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS | st.text(max_size=8), max_size=40).map(" ".join))
def test_any_mixture_of_a_summary_s_words_is_read_or_refused(text: str) -> None:
    assert fuzz.failure_of(text) is None


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(STEMS), st.data())
def test_no_row_of_a_table_is_lost_in_silence(stem: str, data: st.DataObject) -> None:
    saved = saved_summaries()[stem]
    if saved.tool not in ("torchinfo", "torchsummary"):
        return
    lines = saved.text.split("\n")
    before = parse(saved.text, origin="x")
    rows = [layer.line for layer in before.layers]
    if len(rows) < 4:
        return
    place = data.draw(st.sampled_from(rows[1:-1]))
    garbage = data.draw(st.text(st.characters(codec="ascii", categories=["L", "P"]), min_size=3, max_size=30))
    if not garbage.strip("=-_ \\"):
        return
    lines.insert(place, "@@ " + garbage)
    after = parse("\n".join(lines), origin="x")
    unknown = [layer for layer in after.layers if layer.kind == UNKNOWN_KIND]
    assert [layer.line for layer in unknown] == [place + 1]
    assert len(after.layers) == len(before.layers) + 1
    assert after.total_params == before.total_params


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(STEMS), st.floats(0.3, 0.95))
def test_a_summary_cut_anywhere_never_gains_parameters(stem: str, share: float) -> None:
    saved = saved_summaries()[stem]
    lines = saved.text.split("\n")
    whole = parse(saved.text, origin="x")
    try:
        part = parse("\n".join(lines[: int(len(lines) * share)]), origin="x")
    except SummaryError:
        return
    assert part.total_params <= whole.total_params


@pytest.mark.parametrize(
    "line",
    [
        "[" * 4000,
        "Conv2d-1 " + "[1, " * 1000,
        "Conv2d-1 " + "[1] " * 1000,
        "├─" * 2000,
        "(a): " * 800 + "X(",
        "conv (Conv2D) " * 280 + "(None, 3)",
        " " * 3990 + "x",
        "a" * 3990 + " (",
        "Total params: " + "1," * 1990,
    ],
)
def test_hostile_lines_cost_no_more_than_their_length(line: str) -> None:
    """300 lines at the length limit, in seconds: a pattern that backtracks would take hours."""
    for header in (
        "Layer (type:depth-idx)  Output Shape  Param #",
        "Layer (type)  Output Shape  Param #",
        "",
    ):
        text = "\n".join([header, "=" * 60, "├─Conv2d: 1-1   [1, 2]   3", *[line] * 300, "=" * 60])
        assert fuzz.failure_of(text) is None
