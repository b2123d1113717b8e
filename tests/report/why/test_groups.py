"""Layers that repeat are one line, and nothing is lost or counted twice."""

from __future__ import annotations

from typing import List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.estimators.traced.advice import Living
from slurm_gpumem.report.why import repeated

MIB = 1 << 20


def living(layer: str, mib: int = 192, operator: str = "aten::gelu", count: int = 1) -> Living:
    return Living(mib * MIB, operator, layer, "activations", "forward", count)


def test_the_layers_of_a_transformer_are_one_line_each_kind() -> None:
    alive = [living(f"bert.encoder.layer.{n}.intermediate") for n in range(12)]
    alive += [living(f"bert.encoder.layer.{n}.attention", 48, "aten::softmax") for n in range(12)]
    found = [(one.count, one.layer) for one in repeated(alive)]
    assert found == [
        (12, "bert.encoder.layer.{0..11}.intermediate"),
        (12, "bert.encoder.layer.{0..11}.attention"),
    ]


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ([0, 1, 2, 5], "{0..2,5}"),
        ([3], "3"),
        ([10, 9], "{9..10}"),
        (list(range(0, 60, 2)), "{0..58, 30 of them}"),
    ],
)
def test_numbers_are_written_as_people_write_them(numbers: List[int], shown: str) -> None:
    [one] = repeated([living(f"h.{n}.mlp") for n in numbers])
    assert (one.layer, one.count) == (f"h.{shown}.mlp", len(numbers))


def test_stages_of_blocks_are_folded_at_every_number() -> None:
    alive = [living(f"stages.{a}.blocks.{b}.norm") for a in range(2) for b in range(3)]
    assert [(one.layer, one.count) for one in repeated(alive)] == [("stages.{0..1}.blocks.{0..2}.norm", 6)]


def test_what_differs_in_size_operator_or_kind_stays_apart() -> None:
    alive = [living("h.0.mlp"), living("h.1.mlp", 200), living("h.2.mlp", operator="aten::mm")]
    assert len(repeated(alive)) == 3


@given(
    st.lists(
        st.builds(living, st.text("ab.01²٣", max_size=8), st.integers(1, 3), st.just("x"), st.integers(1, 3)),
        max_size=12,
    )
)
def test_no_byte_is_lost_and_none_is_counted_twice(alive: List[Living]) -> None:
    found = repeated(alive)
    assert sum(one.bytes * one.count for one in found) == sum(one.bytes * one.count for one in alive)
    assert [one.bytes * one.count for one in found] == sorted(
        (one.bytes * one.count for one in found), reverse=True
    )
