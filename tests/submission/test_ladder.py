from __future__ import annotations

from typing import Optional, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.config.kinds import parse_ladder
from slurm_gpumem.recovery.ladder import LimitOn, Next, NoStep, next_request, no_limit
from slurm_gpumem.slurm.gres import Held

WHOLE = parse_ladder(["whole-gpu"])
TWO = parse_ladder(["+25%", "whole-gpu"])
BY_NEED = parse_ladder(["need+25%", "whole-gpu"])
A100 = {"a100": 40}
LAST = NoStep("it ran out of GPU memory at the ladder's last step")


def step(
    ladder: tuple,
    taken: int,
    held: Held,
    units: Optional[dict] = None,
    *,
    need: int = 0,
    new: bool = True,
    limit_on: LimitOn = no_limit,
) -> Union[Next, NoStep]:
    return next_request(
        ladder,
        taken,
        held,
        A100 if units is None else units,
        need_units=need,
        gpu_keeps_off_shards=new,
        limit_on=limit_on,
    )


def at_most(**most: int) -> LimitOn:
    def limit_on(gres: str, gpu_type: Optional[str], count: int) -> Optional[str]:
        return f"{gres}={most[gres]}" if count > most.get(gres, count) else None

    return limit_on


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
    assert step(TWO, 0, held) == LAST


def test_after_the_last_step_there_is_none() -> None:
    assert step(WHOLE, 1, Held("shard", None, 12)) == LAST
    assert step((), 0, Held("shard", None, 12)) == LAST


def test_by_need_a_margin_is_put_on_what_was_needed_and_where_that_is_not_known_the_share_is_doubled() -> (
    None
):
    held = Held("shard", None, 12)
    assert step(BY_NEED, 0, held, need=14) == Next("shard:18", 18, False)
    assert step(BY_NEED, 0, held) == Next("shard:24", 24, False)
    # What it says to have needed, it had.
    assert step(BY_NEED, 0, held, need=5) == Next("shard:24", 24, False)
    assert step(BY_NEED, 0, Held("shard", None, 22)) == Next("gpu:1", 0, True)


def test_no_step_asks_for_more_than_any_gpu_in_reach_has() -> None:
    refused = step(BY_NEED, 0, Held("shard", None, 12), need=41)
    assert refused == NoStep("it needs 41 shards at least; no GPU in its reach has more than 40")
    # Another type may have enough, but it is not the one that the job named.
    assert isinstance(step(WHOLE, 0, Held("shard", "a100", 12), {"a100": 40, "h100": 80}, need=41), NoStep)
    assert step(WHOLE, 0, Held("shard", None, 12), {"a100": 40, "h100": 80}, need=41) == Next(
        "gpu:1", 0, True
    )


def test_where_a_limit_forbids_a_step_the_next_best_is_asked_for() -> None:
    held = Held("shard", None, 12)
    assert step(WHOLE, 0, held, limit_on=at_most(gpu=0)) == Next("shard:40", 40, True)
    assert step(WHOLE, 0, held, limit_on=at_most(gpu=0, shard=20)) == Next("shard:20", 20, False)
    assert step(BY_NEED, 0, held, limit_on=at_most(shard=20)) == Next("gpu:1", 0, True)
    assert step(WHOLE, 0, held, new=False, limit_on=at_most(shard=20)) == Next("shard:20", 20, False)


@pytest.mark.parametrize(("most", "need"), [(12, 0), (11, 0), (14, 15)])
def test_where_the_limits_leave_nothing_that_could_help_the_job_stays_as_it_is(most: int, need: int) -> None:
    refused = step(WHOLE, 0, Held("shard", None, 12), need=need, new=False, limit_on=at_most(shard=most))
    assert refused == NoStep(f"more GPU memory is not allowed: shard={most}")


@given(
    st.integers(1, 39), st.integers(0, 40), st.integers(1, 300), st.booleans(), st.sampled_from(["", "need"])
)
def test_every_step_asks_for_more(units: int, need: int, percent: int, new: bool, base: str) -> None:
    following = step(parse_ladder([f"{base}+{percent}%"]), 0, Held("shard", None, units), need=need, new=new)
    assert isinstance(following, Next)
    assert following.whole or units < following.units < 40


MIG = {"1g.18gb": 16_384, "1g.35gb": 33_280, "3g.71gb": 71_424, "h200": 142_747}


def climb(ladder: tuple, held: Held, need_mib: int = 0, sizes: Optional[dict] = None) -> Union[Next, NoStep]:
    return next_request(
        ladder,
        0,
        held,
        {},
        need_units=0,
        gpu_keeps_off_shards=True,
        sizes=MIG if sizes is None else sizes,
        need_mib=need_mib,
    )


@pytest.mark.parametrize(
    ("ladder", "held", "need_mib", "gres"),
    [
        (TWO, "1g.18gb", 0, "gpu:1g.35gb:1"),
        (TWO, "1g.18gb", 30_000, "gpu:3g.71gb:1"),
        (TWO, "3g.71gb", 0, "gpu:h200:1"),
        (BY_NEED, "1g.18gb", 20_000, "gpu:1g.35gb:1"),
        (WHOLE, "1g.18gb", 0, "gpu:h200:1"),
    ],
)
def test_a_job_on_an_instance_climbs_to_larger_profiles_and_then_to_a_whole_gpu(
    ladder: tuple, held: str, need_mib: int, gres: str
) -> None:
    found = climb(ladder, Held("gpu", held, 1), need_mib)
    assert found == Next(gres, 0, "h200" in gres)


def test_there_is_no_step_above_the_largest_or_to_one_that_is_known_to_be_too_small() -> None:
    only = {"1g.18gb": 16_384, "1g.35gb": 33_280}
    assert isinstance(climb(TWO, Held("gpu", "1g.35gb", 1), sizes=only), NoStep)
    assert isinstance(climb(TWO, Held("gpu", "1g.18gb", 1), 40_000, only), NoStep)


def test_a_share_that_becomes_a_whole_gpu_beside_instances_names_its_type() -> None:
    held, units = Held("shard", None, 12), {"h200": 139}
    found = next_request(WHOLE, 0, held, units, need_units=0, gpu_keeps_off_shards=True, sizes=MIG)
    assert found == Next("gpu:h200:1", 0, True)
