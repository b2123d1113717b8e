from __future__ import annotations

from typing import List, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.formats.curve import MOST_STEPS, Curve, format_curve, parse_curve

STEP = st.tuples(st.none() | st.integers(0, 10**8), st.none() | st.integers(0, 100))


@given(st.lists(STEP, min_size=1, max_size=60))
def test_what_is_written_is_read_back(steps: List[tuple[Optional[int], Optional[int]]]) -> None:
    memory = tuple(mib for mib, _ in steps)
    curve = Curve(1.5, 60.0, memory, tuple(None if part is None else part / 100 for _, part in steps))
    assert parse_curve(format_curve(curve)) == curve


def test_activity_that_is_missing_or_too_much_is_made_to_fit() -> None:
    curve = parse_curve("1.0 2.0;5 6 7;250 x")
    assert curve == Curve(1.0, 2.0, (5, 6, 7), (1.0, None, None))


@pytest.mark.parametrize(
    "text", ["", ";;", "1 0;1;", "nan 1;1;1", "1e999 1;1;1", "-1 1;1;1", "1;1;1", "1 1;;"]
)
def test_a_text_that_is_none_is_no_curve(text: str) -> None:
    assert parse_curve(text) is None


@given(st.text(max_size=40))
def test_any_text_can_be_read(text: str) -> None:
    parse_curve(text)
    parse_curve(f"1 1;{text};{text}")


def test_no_more_steps_are_read_than_anybody_writes() -> None:
    curve = parse_curve(f"1 1;{'7 ' * 5000};")
    assert curve is not None
    assert len(curve.memory_mib) == len(curve.sm_active) == MOST_STEPS
