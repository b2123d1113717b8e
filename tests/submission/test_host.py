"""CPUs and host memory of a share: in proportion, and fewer CPUs by what earlier runs used."""

from __future__ import annotations

from typing import List, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.formats.remembered import CpuRun
from slurm_gpumem.submission.share.host import HostShare, cpus_wanted, host_share
from slurm_gpumem.submission.share.request import GpuRequest, fits_somewhere, share_gpu
from tests.submission.made_kinds import A100, SHARDS, kind, same


def test_cpus_and_memory_are_in_proportion() -> None:
    request = share_gpu([A100], same(10_240, [A100]), SHARDS, gpu_type=None)
    assert host_share(request, [A100], SHARDS) == (4, 16_000, 4, None)
    # A job that names its CPUs has the memory that goes with those, as Slurm's own default would be.
    memory = [host_share(request, [A100], SHARDS, named_cpus=cpus).memory_mib for cpus in (1, 2, 4, 40)]
    assert memory == [4_096, 8_000, 16_000, 16_000]


def test_a_small_part_still_gets_a_core_and_some_memory() -> None:
    gpu = kind(threads=2)
    request = share_gpu([gpu], same(100, [gpu]), SHARDS, gpu_type=None)
    assert host_share(request, [gpu], SHARDS) == (2, 4096, 2, None)


def test_four_jobs_fit_beside_each_other_even_on_a_node_with_little_memory() -> None:
    gpu = kind(host_mib=8_000)
    request = share_gpu([gpu], same(100, [gpu]), SHARDS, gpu_type=None)
    assert host_share(request, [gpu], SHARDS).memory_mib == 2_000


def test_a_whole_gpu_by_gpu_1_leaves_cpus_to_slurms_own_defaults() -> None:
    assert host_share(GpuRequest("gpu:1", 0, 0, None, True, ""), [A100], SHARDS) == HostShare(0, 0)


@given(
    st.integers(1, 200_000),
    st.lists(st.tuples(st.integers(1, 192), st.integers(1, 64), st.integers(1, 2)), min_size=1, max_size=3),
)
def test_all_parts_of_a_gpu_together_never_take_more_than_its_share_of_the_node(
    mib: int, shapes: List[tuple[int, int, int]]
) -> None:
    """As many such jobs as one GPU holds fit its CPUs and memory, down to one core and the floor."""
    kinds = [
        kind(f"t{at}", gib, cpus=cpus * threads, threads=threads)
        for at, (gib, cpus, threads) in enumerate(shapes)
    ]
    needs = same(mib, kinds)
    if not fits_somewhere(kinds, needs):
        return
    request = share_gpu(kinds, needs, SHARDS, gpu_type=None)
    host = host_share(request, kinds, SHARDS)
    takers = [k for k in kinds if k.units >= request.units]
    assert takers
    for taker in takers:
        jobs = taker.units // request.units
        assert host.cpus * jobs <= taker.cpus_per_gpu or host.cpus <= taker.threads_per_core
        assert host.memory_mib * jobs <= taker.host_mib_per_gpu or host.memory_mib <= SHARDS.min_host_mib
        assert request.units * SHARDS.shard_mib >= mib or request.units == max(k.units for k in kinds)


@pytest.mark.parametrize(
    ("runs", "wanted"),
    [
        ([], None),
        ([CpuRun(1.1, 8)], 2),
        ([CpuRun(0.0, 8)], 1),
        ([CpuRun(0.8, 8)], 1),
        ([CpuRun(3.2, 8)], 4),
        ([CpuRun(1.1, 8), CpuRun(2.5, 8)], 4),
        ([CpuRun(6.8, 8)], None),
        ([CpuRun(8.0, 8)], None),
        ([CpuRun(9.0, 8)], None),
        # One core of one says nothing; eight of which three were used do.
        ([CpuRun(3.0, 8), CpuRun(1.0, 1)], 4),
        # Lowered to 4 and all of them used: not enough after all.
        ([CpuRun(3.9, 4), CpuRun(3.0, 8)], None),
    ],
)
def test_the_cpus_are_what_runs_used_with_a_margin_unless_they_used_all_they_had(
    runs: List[CpuRun], wanted: Optional[int]
) -> None:
    assert cpus_wanted(runs) == wanted


def test_earlier_runs_lower_the_cpus_and_leave_the_memory() -> None:
    request = share_gpu([A100], same(20_480, [A100]), SHARDS, gpu_type=None)
    assert host_share(request, [A100], SHARDS, [CpuRun(1.1, 8)]) == (2, 32_000, 8, 1.1)
    assert host_share(request, [A100], SHARDS, [CpuRun(12.0, 32)]) == (8, 32_000, 8, None)


def test_cpus_by_use_are_whole_cores() -> None:
    threads = kind(threads=2)
    request = share_gpu([threads], same(20_480, [threads]), SHARDS, gpu_type=None)
    assert host_share(request, [threads], SHARDS, [CpuRun(2.1, 8)]).cpus == 4


@given(st.lists(st.tuples(st.floats(0, 64), st.integers(1, 64)), max_size=6), st.integers(1, 40))
def test_earlier_runs_never_raise_the_cpus_and_never_take_the_last(
    made: List[tuple[float, int]], gib: int
) -> None:
    runs = [CpuRun(used, held) for used, held in made]
    request = share_gpu([A100], same(gib * 1024, [A100]), SHARDS, gpu_type=None)
    host = host_share(request, [A100], SHARDS, runs)
    assert 1 <= host.cpus <= host_share(request, [A100], SHARDS).cpus
    assert (host.cpus_used is not None) == (host.cpus < host.cpus_by_share)


@given(st.floats(0.1, 60), st.integers(1, 64))
def test_a_job_that_uses_the_same_again_is_asked_the_same_again(used: float, held: int) -> None:
    """Lowered CPUs must not look like too few at the next submission, or requests would go up and down."""
    first = cpus_wanted([CpuRun(used, held)])
    if first is not None:
        assert cpus_wanted([CpuRun(used, first), CpuRun(used, held)]) == first
