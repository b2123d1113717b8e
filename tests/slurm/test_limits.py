"""The limits of one job, out of what `scontrol show assoc_mgr` prints (as 22.05.8 does)."""

from __future__ import annotations

from typing import Dict, Optional

import pytest

from slurm_gpumem.slurm.state.controller import JobLimits, TresLimit, exceeded
from slurm_gpumem.slurm.state.queue import Job
from tests.support.fake_slurm import FakeSlurm

JOB = Job(
    name="7", state="FAILED", reason="", restarts=0, may_requeue=True, batch=True, status="1:0", het=False,
    priority=1, uid=5, partitions=("gpu",), request="gres/shard:12", comment="", number=7,
    user="anna", account="sub", qos="normal",
)  # fmt: skip
NONE = "cpu=N(0),mem=N(0),gres/gpu=N(0),gres/shard=N(0)"
RUN_MINS = f"GrpTRESMins={NONE} GrpTRESRunMins=cpu=N(60),gres/shard=9(600)"


def association(account: str, user: str = "", parent: str = "", partition: str = "", **limits: str) -> str:
    group = limits.pop("GrpTRES", NONE)
    own = {"MaxTRESPJ": "", "MaxTRESPN": "", **limits}
    return (
        f"ClusterName=c Account={account} UserName={user} Partition={partition} Priority=0 ID=4 "
        "SharesRaw/Norm/Level/Factor=1/18446744073709551616.00/1/0.00 UsageRaw/Norm/Efctv=0.00/1.00/0.00 "
        f"ParentAccount={parent} Lft=2 DefAssoc=No GrpJobs=N(0) GrpWall=N(0.00) GrpTRES={group} {RUN_MINS} "
        f"MaxJobs= MaxWallPJ= {' '.join(f'{key}={value}' for key, value in own.items())} MinPrioThresh=\n"
    )


def qos(name: str, *, group: str = NONE, job: str = "", user: Optional[str] = None) -> str:
    users = "No Users" if user is None else f" 5={{MaxJobsPU=N(0) MaxTRESPU={user}}} 6={{MaxTRESPU={user}}}"
    return (
        f"QOS={name}(1) UsageRaw=0.000000 GrpJobs=N(0) GrpTRES={group} {RUN_MINS} MaxWallPJ= "
        f"MaxTRESPJ={job} MaxTRESPN= MinPrioThresh=  Account Limits=No Accounts User Limits={users}\n"
    )


def in_the_way(text: str, gres: str, count: int, kind: Optional[str] = None, part_qos: str = "N/A") -> str:
    answers: Dict[str, str] = {
        "scontrol -o show assoc_mgr": f"Current Association Manager state\n{text}",
        "scontrol -o show partition": f"PartitionName=gpu Default=YES QoS={part_qos}\n",
    }
    return exceeded(JobLimits(FakeSlurm(answers)).of(JOB), gres, kind, count) or ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (association("sub", GrpTRES="cpu=N(0),gres/shard=20(12)"), "GrpTRES of account sub is gres/shard=20"),
        (
            association("sub", parent="top(3)") + association("top", GrpTRES="gres/shard=20(0)"),
            "GrpTRES of account top is gres/shard=20",
        ),
        (
            association("sub", "anna(5)", MaxTRESPJ="gres/shard=20"),
            "MaxTRESPJ of user anna in account sub is gres/shard=20",
        ),
        (qos("normal", user="gres/gpu=1(0),gres/shard=20(0)"), "MaxTRESPU of QOS normal is gres/shard=20"),
        (qos("normal", group="gres/shard=20(4)"), "GrpTRES of QOS normal is gres/shard=20"),
    ],
)
def test_the_limit_that_is_exceeded_is_named(text: str, where: str) -> None:
    assert in_the_way(text, "shard", 21) == where
    assert in_the_way(text, "shard", 20) == ""
    assert in_the_way(text, "gpu", 1) == ""


def test_a_limit_counts_shards_of_all_nodes_unless_it_is_one_for_each() -> None:
    all_nodes = TresLimit("gres/shard", 20, "MaxTRESPJ of QOS normal")
    each_node = TresLimit("gres/shard", 20, "MaxTRESPN of QOS normal")
    assert exceeded([all_nodes], "shard", None, 11, 2) == "MaxTRESPJ of QOS normal is gres/shard=20"
    assert exceeded([all_nodes], "shard", None, 10, 2) is None
    assert exceeded([each_node], "shard", None, 20, 2) is None
    assert exceeded([each_node], "shard", None, 21, 2) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        association("other", GrpTRES="gres/shard=1(0)"),
        association("sub", "bert(6)", MaxTRESPJ="gres/shard=1"),
        association("sub", "anna(5)", partition="cpu", MaxTRESPJ="gres/shard=1"),
        # What an account has for each job, a user's own association may raise.
        association("sub", MaxTRESPJ="gres/shard=1")
        + association("sub", "anna(5)", MaxTRESPJ="gres/shard=80"),
        qos("other", job="gres/shard=1"),
    ],
)
def test_limits_of_others_do_not_count(text: str) -> None:
    assert in_the_way(text, "shard", 40) == ""


def test_a_qos_counts_before_an_association_and_a_partitions_qos_before_the_jobs() -> None:
    small = association("sub", GrpTRES="gres/shard=10(0)")
    assert in_the_way(small + qos("normal", group="gres/shard=50(0)"), "shard", 40) == ""
    both = qos("normal", group="gres/shard=50(0)") + qos("part", group="gres/shard=30(0)")
    assert in_the_way(small + both, "shard", 40, part_qos="part") == "GrpTRES of QOS part is gres/shard=30"


def test_a_limit_on_a_type_is_for_that_type() -> None:
    text = association("sub", GrpTRES="gres/gpu=N(0),gres/gpu:a100=0(0)")
    assert in_the_way(text, "gpu", 1, "a100") == "GrpTRES of account sub is gres/gpu:a100=0"
    assert in_the_way(text, "gpu", 1, "h100") == ""


def test_accounts_that_are_their_own_parents_end_the_search() -> None:
    assert in_the_way(association("sub", parent="sub(1)"), "shard", 40) == ""
