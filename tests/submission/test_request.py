"""From a need to a request: enough on every GPU it may land on, never more than one GPU has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.config.load import SharingPolicy
from slurm_gpumem.submission.share.request import (
    Need,
    fits_somewhere,
    largest_kind,
    needs_whole_gpu,
    share_gpu,
    whole_gpu,
    with_article,
)
from tests.submission.made_kinds import A100, H200, SHARDS, kind, same

MPS = SharingPolicy(gres="mps")


def test_the_request_is_rounded_up_to_whole_shards() -> None:
    request = share_gpu([A100], [Need(11_900, 12_289)], SHARDS, gpu_type=None)
    assert (request.gres, request.units, request.per_gpu) == ("shard:13", 13, 40)
    assert request.reason == "13 of 40 shards on an a100"


def test_the_type_the_user_named_is_kept() -> None:
    assert share_gpu([A100], [Need(1, 1)], SHARDS, gpu_type="a100").gres == "shard:a100:1"


def test_a_request_over_one_gpu_is_capped_when_the_peak_fits() -> None:
    request = share_gpu([A100], [Need(40_000, 45_000)], SHARDS, gpu_type=None)
    assert request.gres == "shard:40"


def test_among_gpus_of_two_sizes_the_larger_request_holds_on_both() -> None:
    request = share_gpu([A100, H200], [Need(9_000, 9_500), Need(9_900, 10_300)], SHARDS, gpu_type=None)
    assert request.gres == "shard:11"
    assert request.reason == "11 shards of one GPU (a100: 40, h200: 140)"


def test_what_fits_only_the_larger_gpu_asks_for_more_than_the_smaller_has() -> None:
    kinds = [A100, H200]
    assert fits_somewhere(kinds, same(60_000, kinds))
    request = share_gpu(kinds, same(60_000, kinds), SHARDS, gpu_type=None)
    assert (request.gres, request.reason) == ("shard:59", "59 of 140 shards on an h200")


def test_nothing_fits_when_even_the_largest_is_too_small() -> None:
    kinds = [A100, H200]
    assert not fits_somewhere(kinds, same(150_000, kinds))
    assert largest_kind(kinds) == H200


def test_mps_units_are_a_share_of_the_gpus_memory() -> None:
    gpu = kind(units=100)
    assert share_gpu([gpu], [Need(12_288, 12_288)], MPS, gpu_type=None).gres == "mps:30"
    assert share_gpu([gpu], [Need(40_000, 45_000)], MPS, gpu_type="a100").gres == "mps:a100:100"


def test_mps_on_two_sizes_asks_for_the_share_of_the_smaller() -> None:
    kinds = [kind(units=100), kind("h200", 140, units=100)]
    assert share_gpu(kinds, same(12_288, kinds), MPS, gpu_type=None).gres == "mps:30"


def test_mps_that_fits_only_the_larger_names_its_type() -> None:
    kinds = [kind(units=100), kind("h200", 140, units=100)]
    assert share_gpu(kinds, same(71_680, kinds), MPS, gpu_type=None).gres == "mps:h200:50"


def test_a_whole_gpu_is_gpu_1_where_slurm_keeps_it_apart_from_shards() -> None:
    request = whole_gpu([A100], same(1, [A100]), SHARDS, gpu_type=None, gpu_keeps_off_shards=True, reason="r")
    assert (request.gres, request.units, request.whole_gpu) == ("gpu:1", 0, True)


def test_on_old_slurm_a_whole_gpu_is_all_shards_of_the_smallest_type_that_fits() -> None:
    kinds = [H200, A100]
    old = {"gpu_type": None, "gpu_keeps_off_shards": False, "reason": "r"}
    assert whole_gpu(kinds, same(20_000, kinds), SHARDS, **old).gres == "shard:a100:40"  # type: ignore[arg-type]
    assert whole_gpu(kinds, same(60_000, kinds), SHARDS, **old).gres == "shard:h200:140"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "said"), [("a100", "an a100"), ("h200", "an h200"), ("v100", "a v100"), ("GPU", "a GPU")]
)
def test_articles_go_by_sound(name: str, said: str) -> None:
    assert with_article(name) == said


def test_the_larger_of_memory_and_activity_is_asked_for() -> None:
    busy = share_gpu([A100], [Need(4_000, 5_000, 0.6)], SHARDS, gpu_type=None)
    assert (busy.units, busy.memory_units, busy.activity_units) == (24, 5, 24)
    assert busy.activity_units > busy.memory_units
    assert busy.reason == "24 of 40 shards on an a100"
    large = share_gpu([A100], [Need(30_000, 31_000, 0.6)], SHARDS, gpu_type=None)
    assert (large.units, large.memory_units, large.activity_units) == (31, 31, 24)
    assert large.activity_units <= large.memory_units
    assert large.reason == "31 of 40 shards on an a100"


def test_activity_counts_in_mps_units_too() -> None:
    gpu = kind(units=100)
    assert share_gpu([gpu], [Need(4_000, 4_000, 0.6)], MPS, gpu_type=None).units == 60


@pytest.mark.parametrize(
    ("on_a100", "on_h200", "gres"),
    [
        (0.2, 0.07, "shard:10"),
        (0.2, 0.28, "shard:a100:8"),
        (0.2, 0.5, "shard:a100:8"),
        (1.0, 0.2, "shard:h200:28"),
    ],
)
def test_a_type_is_named_where_one_number_for_all_would_take_much_more_of_a_gpu_than_the_job_needs(
    on_a100: float, on_h200: float, gres: str
) -> None:
    needs = [Need(1_300, 1_400, on_a100), Need(1_300, 1_400, on_h200)]
    request = share_gpu([A100, H200], needs, SHARDS, gpu_type=None)
    assert (request.gres, request.memory_units) == (gres, 2)


def test_a_job_that_fills_every_kind_needs_one_to_itself() -> None:
    assert needs_whole_gpu([A100, H200], [Need(1, 1, 1.0), Need(1, 1, 1.0)])
    assert not needs_whole_gpu([A100, H200], [Need(1, 1, 1.0), Need(1, 1, 0.7)])
    assert not needs_whole_gpu([kind(units=0)], [Need(1, 1, 1.0)])


@given(st.integers(1, 40_000), st.floats(0.0, 1.0), st.integers(1, 192))
def test_shares_in_whole_shards_never_promise_more_than_a_gpu(mib: int, activity: float, gib: int) -> None:
    gpu = kind(gib=gib)
    request = share_gpu([gpu], [Need(mib, mib, activity)], SHARDS, gpu_type=None)
    assert activity * gpu.units - 1e-6 <= request.units <= gpu.units
