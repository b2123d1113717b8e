"""Preemption by requeueing: jobs are run again as they were, and programs that save do no step twice."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, NamedTuple, Tuple

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from slurm_gpumem.slurm.client import parse_version
from slurm_gpumem.slurm.state.queue import REQUEUED_IN_GRACE_TIME
from tests.recovery.conftest import OOM_LINE, Site, hurried, make_site, needs_root
from tests.recovery.test_slots import RECORD, program, steps, submit
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]

STEPS = 80
USER_SIGNAL = "SlurmctldParameters=preempt_send_user_signal"
"""From 23.02 on: PreemptParameters=send_user_signal."""


class Case(NamedTuple):
    """How a job runs its program, and how it is told."""

    grace_s: int
    before: str = ""
    options: Tuple[str, ...] = ()


CASES = {
    "batch": Case(0),
    "batch, grace time": Case(8),
    "step, grace time, a signal of its own": Case(8, "srun", ("--signal=USR1@30",)),
}


FIRST_RUN = '[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0; '
WAITS = "sleep 300 & wait $!"
SHARED = {
    "quiet": "echo begins; " + FIRST_RUN + WAITS,
    "dies with an oom": f"trap \"echo '{OOM_LINE}' >&2; exit 1\" TERM; echo begins; {FIRST_RUN} {WAITS}",
}


@pytest.fixture(scope="module")
def site(make_module_cluster: Callable[..., Cluster]) -> Iterator[Site]:
    made = make_site(
        make_module_cluster,
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        USER_SIGNAL,
        "PartitionName=urgent Nodes=ALL PriorityTier=10 DefMemPerCPU=100 State=UP",
        *(f"PartitionName=low{s} Nodes=ALL GraceTime={s} DefMemPerCPU=100 State=UP" for s in (0, 8)),
        nodes=tuple(NodeSpec(f"n{at}", gpus=1) for at in range(len(CASES) + 1)),
    )
    with hurried(made) as running:
        yield running


@pytest.fixture(scope="module")
def preempted(site: Site) -> Dict[str, str]:
    """One job of each kind on a node of its own, and one for each node that wants its place."""
    train = program(site, STEPS).replace("/usr/bin/python3", "$BEFORE /usr/bin/python3")
    jobs = {}
    for at, (name, case) in enumerate(CASES.items()):
        options = (f"--nodelist=n{at}", f"--partition=low{case.grace_s}", *case.options)
        jobs[name] = submit(site, f"BEFORE={case.before}; {train}", *options, comment=RECORD)
    for job in jobs.values():
        until(lambda job=job: site.runs(job) and steps(site, job))  # type: ignore[misc]
    urgent = [
        site.submit("true", "--partition=urgent", f"--nodelist=n{at}", gres="gpu:1", comment="")
        for at in range(len(CASES))
    ]
    for job in urgent:
        site.ended(job, "COMPLETED")
    return jobs


def version(site: Site) -> Tuple[int, int, int]:
    return parse_version(site.cluster.run(["sinfo", "--version"], check=True).stdout)


@pytest.mark.parametrize("name", CASES)
def test_a_preempted_program_that_saves_comes_back_and_does_every_step_once(
    site: Site, preempted: Dict[str, str], name: str
) -> None:
    job, case = preempted[name], CASES[name]
    assert int(site.ended(job, "COMPLETED")["RestartCnt"]) == site.runs(job) - 1 >= 1
    done = steps(site, job)
    if case.grace_s and not case.before and REQUEUED_IN_GRACE_TIME <= version(site) < (26, 5, 5):
        done = done[:STEPS]  # Slurm runs it once more when it has finished
    assert done == list(range(STEPS))


@pytest.fixture(scope="module")
def shared(site: Site) -> Dict[str, str]:
    """Jobs on one GPU of the last node, all preempted by one that needs the whole of it."""
    node = f"--nodelist=n{len(CASES)}"
    jobs = {name: site.submit(script, node) for name, script in SHARED.items()}
    for job in jobs.values():
        until(lambda job=job: site.runs(job) == 1)  # type: ignore[misc]
    urgent = site.submit("true", "-p", "urgent", node, gres="shard:40", comment="")
    site.ended(urgent, "COMPLETED")
    return jobs


@pytest.mark.parametrize("name", SHARED)
def test_a_preempted_job_comes_back_with_the_shards_it_had(
    site: Site, shared: Dict[str, str], name: str
) -> None:
    shown: Dict[str, Any] = site.ended(shared[name], "COMPLETED")
    assert shown["tres-per-node"].removeprefix("gres")[1:] == "shard:12"
    assert (shown["RestartCnt"], site.runs(shared[name])) == ("1", 2)
    assert "retry=" not in shown["Comment"]
    assert " requeued" not in site.log()
    record = site.record(shared[name], 0)
    # What a job prints when it is ended is no reason of its own.
    assert name != "quiet" or (not record["hints"] and record["verdict"] in (None, ""))
