"""Preemption by requeueing: shared jobs are run again as they were, and no run counts as out of memory."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from tests.recovery.conftest import OOM_LINE, Site, hurried, make_site, needs_root
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]

FIRST_RUN = '[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0; '
WAITS = "sleep 300 & wait $!"
JOBS = {
    "quiet": "echo begins; " + FIRST_RUN + WAITS,
    "dies with an oom": f"trap \"echo '{OOM_LINE}' >&2; exit 1\" TERM; echo begins; {FIRST_RUN} {WAITS}",
}


@pytest.fixture(scope="module")
def site(make_module_cluster: Callable[..., Cluster]) -> Iterator[Site]:
    made = make_site(
        make_module_cluster,
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "PartitionName=urgent Nodes=n1 PriorityTier=10 DefMemPerCPU=100 State=UP",
        nodes=(NodeSpec("n1", gpus=1),),
    )
    with hurried(made) as running:
        yield running


@pytest.fixture(scope="module")
def preempted(site: Site) -> Dict[str, str]:
    """One job of each kind on the only GPU, all preempted by one that needs the whole of it."""
    jobs = {name: site.submit(script) for name, script in JOBS.items()}
    for job in jobs.values():
        until(lambda job=job: site.runs(job) == 1)  # type: ignore[misc]
    urgent = site.submit("true", "-p", "urgent", gres="shard:40", comment="")
    site.ended(urgent, "COMPLETED")
    return jobs


@pytest.mark.parametrize("name", JOBS)
def test_a_preempted_job_comes_back_with_the_shards_it_had(
    site: Site, preempted: Dict[str, str], name: str
) -> None:
    shown: Dict[str, Any] = site.ended(preempted[name], "COMPLETED")
    assert shown["tres-per-node"].removeprefix("gres")[1:] == "shard:12"
    assert (shown["RestartCnt"], site.runs(preempted[name])) == ("1", 2)
    assert "retry=" not in shown["Comment"]
    assert " requeued" not in site.log()
    record = site.record(preempted[name], 0)
    # What a job prints when it is ended is no reason of its own.
    assert name != "quiet" or (not record["hints"] and record["verdict"] in (None, ""))
