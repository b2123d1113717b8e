from __future__ import annotations

from typing import List

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.simulation.gpu_index import MaxTree


@given(
    st.lists(st.integers(-1, 9), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 39), st.integers(-1, 9)), max_size=20),
    st.integers(0, 10),
    st.integers(0, 41),
)
def test_it_finds_the_same_place_as_a_search_through_all(
    values: List[int], changes: List[tuple[int, int]], least: int, start: int
) -> None:
    tree = MaxTree(values)
    for place, value in changes:
        if place < len(values):
            values[place] = value
            tree[place] = value
    expected = next((p for p in range(start, len(values)) if values[p] >= least), None)
    assert tree.first(least, start) == expected
    assert tree.largest == max(values)
    assert [tree[place] for place in range(len(values))] == values
