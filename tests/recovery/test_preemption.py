"""Preemption by requeueing: shared jobs are run again as they were, and no run counts as out of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Tuple

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.demo import wait_for_job
from slurm_gpumem.devcluster.spec import NodeSpec
from slurm_gpumem.devcluster.trial import installed_version
from tests.recovery.conftest import OOM_LINE, Site, hurried, make_site, needs_root
from tests.support.site_files import SLURM_ROOT
from tests.support.slurm_jobs import submit
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]

FIRST_RUN = '[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0; '
WAITS = "sleep 300 & wait $!"
JOBS = {
    "quiet": "echo begins; " + FIRST_RUN + WAITS,
    "oom survived": f"echo begins; {FIRST_RUN} echo '{OOM_LINE}' >&2; echo epoch 1 loss 0.3; {WAITS}",
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


USER_SIGNAL = "SlurmctldParameters=preempt_send_user_signal"
"""From 23.02 on: PreemptParameters=send_user_signal."""


@pytest.mark.parametrize(
    ("grace_s", "lines", "asked", "told"),
    [(0, (), (), "TERM"), (8, (), (), "TERM"), (8, (USER_SIGNAL,), ("--signal=B:USR1@30",), "USR1")],
)
def test_what_a_batch_script_sees_of_preemption(
    make_cluster: Callable[..., Cluster],
    state_folder: Path,
    grace_s: int,
    lines: Tuple[str, ...],
    asked: Tuple[str, ...],
    told: str,
) -> None:
    """A script that ends when it is told to comes back. In its grace time it is told nothing unless it asked
    for a signal."""
    state_folder.chmod(0o777)
    conf = (
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "PartitionName=urgent Nodes=n1 PriorityTier=10 DefMemPerCPU=100 State=UP",
        f"PartitionName=low Nodes=n1 PriorityTier=1 GraceTime={grace_s} DefMemPerCPU=100 State=UP",
    )
    cluster = make_cluster(nodes=(NodeSpec("n1", gpus=1),), cred_expire_s=5, extra_conf=(*conf, *lines))
    log = state_folder / "log"
    script = (
        f"echo run >> {log}; {FIRST_RUN} for name in USR1 TERM; do "
        f'trap "echo $name >> {log}; exit 0" $name; done; while :; do sleep 0.1; done'
    )
    whole = ("--gres=gpu:1", "--mem=64")
    job = submit(cluster, *whole, "--partition=low", "--requeue", *asked, command=script)
    until(log.exists)
    urgent = submit(cluster, *whole, "--partition=urgent", command="true")
    wait_for_job(cluster, urgent, timeout_s=120)
    ended = wait_for_job(cluster, job, ("COMPLETED",), timeout_s=120)
    # Before 24.05 a job that ends in its grace time is over.
    comes_back = told == "TERM" or installed_version(SLURM_ROOT) >= (24, 5)
    first, signalled, *again = log.read_text().splitlines()
    assert (first, signalled, bool(again)) == ("run", told, comes_back)
    # 24.11 runs it once more than it has to.
    assert (ended["Restarts"] != "0") == comes_back


@pytest.mark.parametrize("name", JOBS)
def test_a_preempted_job_comes_back_with_the_shards_it_had(
    site: Site, preempted: Dict[str, str], name: str
) -> None:
    shown: Dict[str, Any] = site.ended(preempted[name], "COMPLETED")
    assert shown["tres-per-node"].removeprefix("gres")[1:] == "shard:12"
    assert (shown["RestartCnt"], site.runs(preempted[name])) == ("1", 2)
    assert "retry=" not in shown["Comment"]
    assert " requeued" not in site.log()


@pytest.mark.parametrize("name", ["quiet", "oom survived"])
def test_the_node_s_record_of_a_preempted_run_says_nothing_of_memory(
    site: Site, preempted: Dict[str, str], name: str
) -> None:
    site.ended(preempted[name], "COMPLETED")
    record = site.record(preempted[name], 0)
    assert not record.get("hints")
    assert record.get("verdict") in (None, "")
