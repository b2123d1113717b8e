from __future__ import annotations

from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.config.ladder import parse_ladder
from slurm_gpumem.slurm.gres import Held
from slurm_gpumem.submission.ladder import Next, next_request

WHOLE = parse_ladder(["whole-gpu"])
TWO = parse_ladder(["+25%", "whole-gpu"])
A100 = {"a100": 40}


def step(
    ladder: tuple, taken: int, held: Held, units: Optional[dict] = None, *, need: int = 0, new: bool = True
) -> Optional[Next]:
    return next_request(
        ladder, taken, held, A100 if units is None else units, need_units=need, gpu_keeps_off_shards=new
    )


def test_a_share_becomes_a_whole_gpu_by_the_versions_own_words() -> None:
    held = Held("shard", None, 12)
    assert step(WHOLE, 0, held) == Next("gpu:1", 0, True)
    assert step(WHOLE, 0, held, new=False) == Next("shard:40", 40, True)


def test_a_type_stays() -> None:
    held = Held("shard", "a100", 12)
    both = {"a100": 40, "h100": 80}
    assert step(WHOLE, 0, held, both) == Next("gpu:a100:1", 0, True)
    assert step(WHOLE, 0, held, both, new=False) == Next("shard:a100:40", 40, True)


def test_without_a_type_the_largest_gpu_is_a_whole_one() -> None:
    assert step(WHOLE, 0, Held("shard", None, 12), {"a100": 40, "h100": 80}, new=False) == Next(
        "shard:80", 80, True
    )


def test_a_gpu_that_is_no_larger_than_the_failed_share_is_not_tried() -> None:
    assert step(WHOLE, 0, Held("shard", None, 20), {"t4": 15, "h100": 80}) == Next("gpu:h100:1", 0, True)


def test_the_first_step_asks_for_a_margin_on_what_is_known_to_be_needed() -> None:
    held = Held("shard", None, 12)
    assert step(TWO, 0, held) == Next("shard:15", 15, False)
    assert step(TWO, 0, held, need=14) == Next("shard:18", 18, False)
    assert step(TWO, 1, Held("shard", None, 18)) == Next("gpu:1", 0, True)


def test_a_margin_that_fills_the_gpu_is_a_whole_one() -> None:
    assert step(TWO, 0, Held("shard", None, 35)) == Next("gpu:1", 0, True)


@pytest.mark.parametrize("held", [Held("gpu", None, 1), Held("shard", None, 40), Held("shard", "a100", 40)])
def test_who_has_a_whole_gpu_is_at_the_end_whatever_was_counted(held: Held) -> None:
    assert step(TWO, 0, held) is None


def test_after_the_last_step_there_is_none() -> None:
    assert step(WHOLE, 1, Held("shard", None, 12)) is None
    assert step((), 0, Held("shard", None, 12)) is None


@given(st.integers(1, 39), st.integers(0, 200), st.integers(1, 300), st.booleans())
def test_every_step_asks_for_more(units: int, need: int, percent: int, new: bool) -> None:
    following = step(parse_ladder([f"+{percent}%"]), 0, Held("shard", None, units), need=need, new=new)
    assert following is not None
    assert following.whole or units < following.units < 40
