"""Several types of GPUs in one partition: the job asks for those that hold it, as far as Slurm can say so."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import pytest

from slurm_gpumem.estimators.gpus import closest_gpu
from slurm_gpumem.slurm.state.nodes import GpuNodes
from slurm_gpumem.submission.candidate_gpus import CandidateGpus, gpu_kinds
from slurm_gpumem.submission.needs import NeedOnGpu, Needs
from slurm_gpumem.submission.plan import Plan
from slurm_gpumem.submission.rules import choose_request
from slurm_gpumem.submission.sbatch_call import build_call
from slurm_gpumem.submission.share.request import Need
from slurm_gpumem.submission.share.types_that_fit import sides
from slurm_gpumem.submission.submission import Workload
from tests.submission.test_decide import asked


def nodes(gpu_type: str, *features: str, weight: int = 1, partitions: Tuple[str, ...] = ("gpu",)) -> GpuNodes:
    return GpuNodes(partitions, gpu_type, 4, 4, 0, 0, 64, 1, 512_000, features=features, weight=weight)


V100, A100, H200 = nodes("v100", "v100"), nodes("a100", "a100", "big"), nodes("h200", "h200", "big")


def plan(gib: float, *groups: GpuNodes, argv: Tuple[str, ...] = (), **own: Any) -> Plan:
    job = asked(*argv, **{"mem": "10G", "gpu": "any", **own})
    kinds, models = gpu_kinds(groups, job.config.sharing, None)
    mib = int(gib * 1024)
    on = tuple(NeedOnGpu(model, Need(mib, mib)) for model in models)
    partitions = tuple(dict.fromkeys(name for group in groups for name in group.partitions))
    candidates = CandidateGpus(partitions, kinds, models, tuple(groups), gpu_keeps_off_shards=True)
    return choose_request(job, Workload(mem_mib=mib), candidates, Needs(on))


def added(made: Plan) -> Dict[str, str]:
    wanted = ("gres", "constraint", "partition")
    return {name: value for name, value in build_call(made).added.items() if name in wanted}


def test_one_type_that_holds_it_is_named_in_the_gres() -> None:
    made = plan(60, V100, A100, H200)
    assert added(made) == {"gres": "gpu:h200:1"}
    assert made.reason.startswith("it fits h200 only, not v100, a100; ")


def test_several_types_become_a_constraint_of_features_that_no_other_node_has() -> None:
    made = plan(20, V100, A100, H200)
    assert added(made) == {"gres": "gpu:1", "constraint": "a100|h200"}
    assert made.reason.startswith("it fits a100 and up, not v100; ")


def test_without_features_the_partitions_that_hold_it_are_kept() -> None:
    small = nodes("v100", partitions=("old",))
    made = plan(20, small, nodes("a100", partitions=("new",)), nodes("h200", partitions=("new",)))
    assert added(made) == {"gres": "gpu:1", "partition": "new"}


@pytest.mark.parametrize(("weights", "gres"), [((1, 1), "gpu:a100:1"), ((9, 2), "gpu:h200:1")])
def test_otherwise_the_type_of_the_least_weight_is_named(weights: Tuple[int, int], gres: str) -> None:
    groups = nodes("v100"), nodes("a100", weight=weights[0]), nodes("h200", weight=weights[1])
    assert added(plan(20, *groups)) == {"gres": gres}


def test_a_constraint_of_the_users_own_stays_and_one_type_is_named() -> None:
    assert added(plan(20, V100, A100, H200, argv=("--constraint=ib",))) == {"gres": "gpu:a100:1"}


def test_the_users_own_single_gpu_is_replaced_and_nothing_is_asked_twice() -> None:
    argv = build_call(plan(60, V100, H200, argv=("-G1",))).call.argv
    assert "-G1" not in argv
    assert "--gres=gpu:h200:1" in argv


def test_a_job_that_fits_everywhere_is_bound_to_nothing() -> None:
    assert added(plan(5, V100, A100)) == {"gres": "gpu:1"}


def test_without_any_the_job_is_warned_that_it_may_land_on_a_gpu_that_is_too_small() -> None:
    made = plan(20, V100, A100, gpu="")
    assert added(made) == {"gres": "gpu:1"}
    assert [text for text in made.warnings if "may land" in text] == [
        "it fits a100 only, not v100; it may land on v100: --gpu any asks only for GPUs that hold it"
    ]


def test_the_answer_does_not_list_a_whole_table() -> None:
    groups = [nodes(name) for name in ("t4", "v100", "rtx2080ti", "rtx3080", "a30", "h200")]
    kinds, _ = gpu_kinds(groups, asked().config.sharing, None)
    found = sides(kinds, [Need(60_000, 60_000)] * len(kinds))
    assert str(found) == "fits h200 only, not rtx3080, rtx2080ti, t4 and 2 more"
    assert closest_gpu("h200", None).usable_mib > 60_000
