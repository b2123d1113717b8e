"""Which request is made of a corrected peak."""

from __future__ import annotations

from math import ceil, exp
from typing import List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.estimators.corrected.anchors import STEPS as STEPS_BETWEEN
from slurm_gpumem.estimators.corrected.anchors import climb
from slurm_gpumem.estimators.corrected.choice import LEVELS, SHARD_MIB, choose, options, share_below

STEPS = tuple(4 * level - 2 for level in LEVELS)
"""Evenly spread from two spreads below the peak to two above."""


def test_the_share_of_cases_below_a_step_is_read_between_the_levels() -> None:
    assert share_below(STEPS, -3) == 0
    assert share_below(STEPS, 0) == pytest.approx(0.5)
    assert share_below(STEPS, 1.13) == pytest.approx(0.7825)
    assert share_below(STEPS, 2.1) == 1


def test_a_distribution_with_equal_steps_is_read_without_a_division_by_zero() -> None:
    flat = (0.0,) * (len(LEVELS) - 1) + (1.0,)
    assert share_below(flat, 0) == pytest.approx(LEVELS[-2])
    assert 0 < share_below(flat, 0.5) < 1


@given(
    peak=st.floats(800, 120_000),
    moved=st.integers(-140, 10),
    spread=st.floats(0.002, 1.5),
    price=st.floats(0.5, 500),
)
def test_a_request_is_never_below_the_peak_nor_above_what_any_case_needs(
    peak: float, moved: int, spread: float, price: float
) -> None:
    request = choose(options(peak, moved, spread, STEPS), price)
    most = peak * exp(2 * spread) + moved
    assert request >= peak
    assert request + moved <= ceil(most / SHARD_MIB) * SHARD_MIB * (1 + 1e-9)


@given(peak=st.floats(800, 120_000), spread=st.floats(0.002, 1.5))
def test_the_more_a_failure_costs_the_more_is_requested(peak: float, spread: float) -> None:
    found = options(peak, 0, spread, STEPS)
    requests = [choose(found, price) for price in (0.5, 2, 8, 32, 128, 500)]
    assert requests == sorted(requests)


def test_a_request_ends_at_a_whole_shard_where_that_is_near() -> None:
    request = choose(options(9_000, -22, 0.08, STEPS), 3)
    assert (request - 22) % SHARD_MIB == pytest.approx(0)


def test_a_sure_job_gets_a_narrow_request_and_an_unsure_one_a_wide_one() -> None:
    sure, unsure = (choose(options(20_000, 0, spread, STEPS), 20) for spread in (0.005, 0.2))
    assert sure < 20_000 * 1.1
    assert unsure > 20_000 * 1.3


@given(decided=st.lists(st.floats(0, 40), min_size=STEPS_BETWEEN - 1, max_size=STEPS_BETWEEN - 1))
def test_between_two_batches_a_request_never_falls_and_never_leaves_theirs(decided: List[float]) -> None:
    def decide(share: float) -> float:
        return decided[round(share * STEPS_BETWEEN) - 1]

    found = [climb(10, 20, place / 64, decide) for place in range(65)]
    assert found[0] == 10
    assert found[-1] == pytest.approx(20)
    assert all(low <= high + 1e-9 for low, high in zip(found, found[1:]))


def test_a_request_between_two_batches_is_decided_there() -> None:
    assert climb(10, 20, 0.5, lambda share: 13.0) == 13
    assert climb(10, 20, 0.5, lambda share: 33.0) == 20
