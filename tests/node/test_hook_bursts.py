"""Many jobs start and end at once on a real Slurm: the sampler serves their hooks, whatever becomes of it."""

from __future__ import annotations

import json
import os
import signal
from typing import Callable, Dict, Iterator, List

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import default_nodes
from slurm_gpumem.node import jobs
from slurm_gpumem.node.jobs import RunFolder
from tests.node.conftest import kill, needs_root, samplers_of, take_haste_away
from tests.support.slurm_jobs import submit
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]
TASKS = 60
RECORD = "gpumem/1:est=700,req=1024,shards=1"


@pytest.fixture(scope="module")
def cluster(make_module_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    # As patient as the hooks of these tests: Slurm requeues a job whose Prolog takes longer than this.
    made = make_module_cluster(nodes=default_nodes(2, gpus=1), hooks=True, extra_conf=("MessageTimeout=100",))
    yield made
    made.stop()


@pytest.fixture
def idle(cluster: Cluster) -> Iterator[Cluster]:
    """No sampler of the test before, and none stopped or left after this one."""
    until(lambda: not _samplers(cluster))
    yield cluster
    for pid in _samplers(cluster):
        os.kill(pid, signal.SIGCONT)
    cluster.run(["scancel", "-p", "gpu"], check=True)
    until(lambda: not _queue(cluster))


@pytest.fixture
def patient(idle: Cluster) -> Iterator[Cluster]:
    """With hooks that have minutes: this machine may be slower than a node."""
    files = {path: path.read_text() for path in idle.layout.hooks.iterdir() if path.is_file()}
    take_haste_away(idle.layout.hooks)
    yield idle
    for path, text in files.items():
        path.write_text(text)


def _samplers(cluster: Cluster) -> List[int]:
    return samplers_of(cluster.layout.nodes)


def _queue(cluster: Cluster) -> List[str]:
    return cluster.run(["squeue", "-h", "-r", "-o", "%T %r"], check=True).stdout.splitlines()


def _burst(cluster: Cluster) -> int:
    options = ("--gres=shard:1", "--mem=10", f"--array=1-{TASKS}", f"--comment={RECORD}")
    return int(submit(cluster, *options, command="true"))


def _ends(cluster: Cluster, array: int) -> Dict[int, object]:
    """When each of the array's tasks ended, by their records; 0 of one whose record is still open."""
    found = [json.loads(path.read_text()) for path in cluster.layout.records.glob("*.json")]
    return {record["job_id"]: record["end"] or 0 for record in found if record["job_id"] >= array}


def _assert_well(cluster: Cluster, array: int) -> None:
    until(lambda: not any("held" not in line.lower() for line in _queue(cluster)))
    assert _queue(cluster) == []
    states = cluster.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%T"], check=True).stdout.split()
    assert set(states) == {"idle"}
    # Whose epilog was served by nobody is finished by the sampler, once Slurm has said that it is over.
    until(lambda: len(_ends(cluster, array)) == TASKS, but=lambda: str(_ends(cluster, array)))
    until(lambda: all(_ends(cluster, array).values()), but=lambda: str(_ends(cluster, array)))
    until(lambda: not any(jobs.all_jobs(RunFolder(node)) for node in cluster.layout.nodes.iterdir()))


def test_a_burst_leaves_no_node_drained_no_task_held_and_every_record_closed(patient: Cluster) -> None:
    array = _burst(patient)
    _assert_well(patient, array)
    for node in patient.layout.nodes.iterdir():
        assert sorted(path.name for path in (node / "inbox").iterdir()) in (
            ["bell", "sampler", "starting"],
            ["bell", "starting"],
        )


def test_a_sampler_that_is_killed_in_a_burst_loses_no_job(patient: Cluster) -> None:
    array = _burst(patient)
    killed = 0
    while killed < 4 and _queue(patient):
        until(lambda: _samplers(patient) or not _queue(patient))
        killed += sum(kill(pid) for pid in _samplers(patient)[:1])
    assert killed
    _assert_well(patient, array)
