"""MIG instances, shares and whole GPUs side by side: the smallest that holds the job is asked for."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import pytest

from slurm_gpumem.errors import DoesNotFitError
from slurm_gpumem.estimators.gpus import closest_gpu
from slurm_gpumem.submission.candidate_gpus import CandidateGpus, GpuModel
from slurm_gpumem.submission.needs import NeedOnGpu, Needs
from slurm_gpumem.submission.plan import Plan
from slurm_gpumem.submission.rules import choose_request
from slurm_gpumem.submission.sbatch_call import build_call
from slurm_gpumem.submission.share.host import HostShare
from slurm_gpumem.submission.share.request import GpuKind, Need
from slurm_gpumem.submission.submission import Workload
from tests.submission.test_decide import asked


def kind(gpu_type: str, units: int = 0) -> GpuKind:
    gpu = closest_gpu(gpu_type, None)
    return GpuKind(gpu_type, units, gpu.usable_mib, 7, 16.0, 1, 64_000, profile=gpu.profile, sms=gpu.sms or 0)


H200 = kind("h200")
SHARED = H200._replace(units=139, memory_mib=139 * 1024)
PROFILES = tuple(kind(name) for name in ("3g.71gb", "1g.18gb", "2g.35gb", "1g.35gb"))


def plan(
    gib: float,
    kinds: Tuple[GpuKind, ...],
    *argv: str,
    margin: float = 0.0,
    slow: Tuple[str, ...] = (),
    gpu_type: Optional[str] = None,
    **own: str,
) -> Plan:
    job = asked(*argv, **(own or {"mem": "10G"}))
    mib = int(gib * 1024)
    on = tuple(
        NeedOnGpu(
            GpuModel(one.gpu_type),
            Need(mib, mib + int(margin * 1024), too_slow=one.gpu_type in slow),
        )
        for one in kinds
    )
    models = tuple(one.model for one in on)
    candidates = CandidateGpus(("gpu",), kinds, models, gpu_type=gpu_type, gpu_keeps_off_shards=True)
    return choose_request(job, Workload(mem_mib=mib), candidates, Needs(on))


@pytest.mark.parametrize(
    ("gib", "gres"),
    [
        (1, "gpu:1g.18gb:1"),
        (16, "gpu:1g.18gb:1"),
        (16.01, "gpu:1g.35gb:1"),
        (32.5, "gpu:1g.35gb:1"),
        (33, "gpu:3g.71gb:1"),
        (69.75, "gpu:3g.71gb:1"),
        (70, "gpu:h200:1"),
        (139, "gpu:h200:1"),
    ],
)
def test_the_smallest_profile_that_holds_the_request_is_asked_for(gib: float, gres: str) -> None:
    made = plan(gib, (H200, *PROFILES))
    assert made.request is not None
    assert made.request.gres == gres
    assert made.request.whole_gpu == (gres == "gpu:h200:1")


def test_it_is_the_request_that_must_fit_not_only_the_peak() -> None:
    made = plan(15, PROFILES, margin=2)
    assert made.request is not None
    assert made.request.gres == "gpu:1g.35gb:1"


def test_a_profile_with_too_few_multiprocessors_is_passed_over() -> None:
    made = plan(10, PROFILES, slow=("1g.18gb", "1g.35gb"))
    assert made.request is not None
    assert made.request.gres == "gpu:2g.35gb:1"
    assert made.reason == "2g.35gb; 1g.18gb, 1g.35gb would hold it but be too slow"


def test_a_share_that_takes_less_than_the_smallest_instance_is_taken_instead() -> None:
    small, large = plan(10, (SHARED, *PROFILES)), plan(16, (SHARED, *PROFILES), margin=0.3)
    assert (small.request and small.request.gres) == "shard:10"
    assert (large.request and large.request.gres) == "shard:17"
    exact = plan(15.5, (SHARED._replace(memory_mib=10 * 1024), *PROFILES))
    assert (exact.request and exact.request.gres) == "gpu:1g.18gb:1"


def test_its_part_of_the_host_and_the_instances_memory_go_with_it() -> None:
    made = plan(10, PROFILES)
    assert (made.host, made.reserved_mib, made.shared, made.instance) == (
        HostShare(16, 64_000, 16),
        16_384,
        False,
        True,
    )
    argv = build_call(made).call.argv
    assert "--gres=gpu:1g.18gb:1" in argv
    assert "--cpus-per-task=16" in argv


@pytest.mark.parametrize(
    "words", [("-G1",), ("--gpus-per-node=1",), ("--gres=gpu:1",), ("--gpus-per-task=1",)]
)
def test_the_gpu_that_the_job_asked_for_becomes_the_instance(words: Tuple[str, ...]) -> None:
    argv = build_call(plan(10, PROFILES, *words)).call.argv
    assert [word for word in argv if "gpu" in word and "comment" not in word] == ["--gres=gpu:1g.18gb:1"]


def test_a_profile_that_the_job_named_itself_stays_where_it_holds_the_job() -> None:
    named = (kind("3g.71gb"),)
    made = plan(10, named, "--gres=gpu:3g.71gb:1", gpu_type="3g.71gb")
    assert (made.request, made.reason) == (None, "it asks for 3g.71gb, which holds it")
    with pytest.raises(DoesNotFitError, match=r"does not fit the largest GPU .* \(1g.18gb, 16 GiB\)"):
        plan(17, (kind("1g.18gb"),), "--gres=gpu:1g.18gb:1", gpu_type="1g.18gb")


def test_no_profile_holds_it_and_nothing_is_submitted() -> None:
    with pytest.raises(DoesNotFitError, match="Nothing was submitted"):
        plan(80, PROFILES)


def test_where_only_the_peak_fits_the_largest_profile_is_taken_and_the_answer_says_so() -> None:
    made = plan(65, PROFILES, margin=10)
    assert made.request is not None
    assert made.request.gres == "gpu:3g.71gb:1"
    assert "its peak fits, a margin up to 75.0 GiB does not" in made.reason


@pytest.mark.parametrize(
    ("words", "own"), [((), {"exclusive_gpu": "yes", "mem": "10G"}), (("--exclusive",), {"mem": "10G"})]
)
def test_a_whole_gpu_is_named_by_its_type_beside_instances(words: Tuple[str, ...], own: Any) -> None:
    made = plan(10, (*PROFILES, H200), *words, **own)
    assert made.request is not None
    assert made.request.gres == "gpu:h200:1"
