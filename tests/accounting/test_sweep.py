from __future__ import annotations

from typing import List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.accounting.index import split_evenly


def test_two_jobs_that_overlap_share_the_time_of_the_overlap() -> None:
    assert split_evenly([(1, 0.0, 10.0), (2, 5.0, 20.0)]) == {1: 7.5, 2: 12.5}


def test_a_job_of_no_length_takes_nothing_and_costs_nobody() -> None:
    assert split_evenly([(1, 0.0, 10.0), (2, 5.0, 5.0)]) == {1: 10.0, 2: 0.0}


STAYS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12)


@given(STAYS)
def test_all_parts_together_are_the_time_in_which_anybody_was_there(pairs: List[Tuple[int, int]]) -> None:
    stays = sorted(
        ((run, float(start), float(start + length)) for run, (start, length) in enumerate(pairs)),
        key=lambda stay: stay[1],
    )
    busy = sum(any(start <= second < end for _, start, end in stays) for second in range(80))
    assert sum(split_evenly(stays).values()) == pytest.approx(busy)
