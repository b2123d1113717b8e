"""The search for the largest batch that fits."""

from __future__ import annotations

from typing import Dict

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.estimators.largest import MOST, largest_batch


@given(
    fixed=st.integers(0, 5000),
    slope=st.floats(0.01, 500),
    limit=st.integers(1000, 150000),
    start=st.integers(1, 4096),
    noise=st.integers(0, 30),
)
def test_the_batch_fits_and_the_next_one_does_not(
    fixed: int, slope: float, limit: int, start: int, noise: int
) -> None:
    asked: Dict[int, int] = {}

    def needs(batch: int) -> int:
        asked[batch] = int(fixed + slope * batch + batch * 7919 % (noise + 1))
        return asked[batch]

    found = largest_batch(needs, limit, start)
    if found is None:
        assert needs(1) > limit
    elif found < MOST:
        assert asked[found] <= limit < asked[found + 1]
    assert len(asked) < 60


def test_a_line_takes_few_estimates() -> None:
    asked = set()

    def needs(batch: int) -> int:
        asked.add(batch)
        return 800 + 57 * batch

    assert largest_batch(needs, 40960, 32) == (40960 - 800) // 57
    assert len(asked) <= 12
