"""A cluster comes up, runs jobs, and goes away without a trace; all on real daemons."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.devcluster import cluster as devcluster
from slurm_gpumem.devcluster import processes
from slurm_gpumem.devcluster.cluster import Cluster, load, locked
from slurm_gpumem.devcluster.spec import ClusterSpec, Layout, default_nodes
from slurm_gpumem.errors import DevClusterError
from slurm_gpumem.node.processes import start_of
from tests.support.slurm_jobs import jobs_on_gpus, submit_shared
from tests.support.waiting import until

pytestmark = pytest.mark.slurm


def living(cluster: Cluster) -> list[str]:
    return [process.name for process in cluster.processes() if processes.alive(process)]


def steps(cluster: Cluster) -> list[int]:
    return processes.working_in(cluster.layout.root, "slurmstepd")


def test_the_nodes_are_idle_when_up_returns(make_cluster: Any) -> None:
    cluster = make_cluster()
    nodes = cluster.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %T %G"], check=True).stdout
    assert [line.split()[:2] for line in nodes.splitlines()] == [["n1", "idle"], ["n2", "idle"]]
    assert "gpu:a100:4" in nodes
    assert "160" in nodes


def test_eight_shared_jobs_fill_one_gpu_after_the_other(make_cluster: Any) -> None:
    cluster = make_cluster(nodes=default_nodes(1))
    jobs = [submit_shared(cluster, 12, "gpumem-standin --peak 12000 --seconds 60") for _ in range(8)]
    until(lambda: sum(map(len, jobs_on_gpus(cluster).values())) == 8)
    assert jobs_on_gpus(cluster) == {"n1 gpu0": jobs[:3], "n1 gpu1": jobs[3:6], "n1 gpu2": jobs[6:]}


def test_a_folder_with_other_things_in_it_is_refused(state_folder: Path) -> None:
    (state_folder / "thesis.tex").write_text("mine")
    with pytest.raises(DevClusterError, match="not empty"):
        devcluster.up(ClusterSpec(state=state_folder))
    assert [entry.name for entry in state_folder.iterdir()] == ["thesis.tex"]


def test_up_cleans_up_after_a_crashed_controller(make_cluster: Any) -> None:
    crashed = make_cluster(nodes=default_nodes(1))
    job = submit_shared(crashed, 12, "gpumem-standin --peak 12000 --seconds 100")
    until(lambda: jobs_on_gpus(crashed) == {"n1 gpu0": [job]})
    controller = next(p for p in crashed.processes() if p.program == "slurmctld")
    os.kill(controller.pid, signal.SIGKILL)
    until(lambda: not processes.alive(controller))
    assert living(crashed) == ["munged", "slurmd n1"]
    before = [*[p.pid for p in crashed.processes()], *processes.descendants(steps(crashed))]
    assert len(before) > 4  # also the job's slurmstepd and what runs below it

    again = devcluster.up(crashed.spec)
    try:
        assert [pid for pid in before if start_of(pid)] == []
        assert again.run(["squeue", "-h"]).stdout == ""
        assert living(again) == ["munged", "slurmctld", "slurmd n1"]
    finally:
        again.stop()


def test_stop_ends_the_daemons_and_the_jobs_that_still_run(make_cluster: Any) -> None:
    cluster = make_cluster(nodes=default_nodes(1))
    submit_shared(cluster, 12, "gpumem-standin --peak 12000 --seconds 100; sleep 100")
    until(lambda: bool(jobs_on_gpus(cluster)))
    started = cluster.processes()
    family = processes.descendants(steps(cluster))
    assert len(family) > 1
    cluster.stop()
    assert not any(processes.alive(process) for process in started)
    until(lambda: not any(start_of(pid) for pid in family))
    assert cluster.run(["scontrol", "ping"], timeout_s=120).returncode != 0


def test_two_clusters_live_side_by_side(make_cluster: Any) -> None:
    one = make_cluster(nodes=default_nodes(1, gpu_type="a100"))
    other = make_cluster(nodes=default_nodes(1, gpu_type="h100"))
    one.stop()
    nodes = other.run(["sinfo", "-h", "-p", "gpu", "-o", "%G"], check=True).stdout
    assert "h100" in nodes
    assert len(living(other)) == 3


def test_a_broken_configuration_is_told_and_leaves_nothing_running(state_folder: Path) -> None:
    with pytest.raises(DevClusterError, match=r"slurmctld exited right after its start:\n.*"):
        devcluster.up(ClusterSpec(state=state_folder, extra_conf=("SelectType=select/nonsense",)))
    known = load(Layout(state_folder))
    assert known is not None
    assert known.processes
    assert not any(processes.alive(process) for process in known.processes)


def test_two_commands_never_work_in_one_folder_at_once(state_folder: Path) -> None:
    with (
        locked(Layout(state_folder)),
        pytest.raises(DevClusterError, match="is at work in this state"),
    ):
        devcluster.up(ClusterSpec(state=state_folder))
