"""The whole way on real daemons: submitted, measured by the hooks, joined with slurmdbd, remembered."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Callable

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from tests.support.slurm_jobs import hold_until, live_peaks, verified_peaks
from tests.support.waiting import until

pytestmark = pytest.mark.slurm
MODEL = Path(__file__).parents[2] / "docs" / "examples" / "resnet50.txt"


def test_a_job_that_ran_three_times_is_remembered_and_reported_with_slurms_own_word(
    make_cluster: Callable[..., Cluster], state_folder: Path
) -> None:
    cluster = make_cluster(nodes=(NodeSpec("n1"),), accounting=True, hooks=True)
    folder, script = state_folder, state_folder / "job.sh"
    env = {"XDG_CACHE_HOME": str(folder)}
    script.write_text(f"#!/bin/bash\n{hold_until(folder / 'go', 2000)}\n")

    def call(command: str, *argv: str) -> Any:
        path = str(Path(sys.executable).with_name(command))
        return cluster.run([path, *argv], env=env, cwd=folder, timeout_s=120)

    words = ["--model", str(MODEL), "--batch-size", "16", "-o", "/dev/null", str(script)]
    for _ in range(3):
        assert "remembered" not in call("gpusbatch", *words).stderr
    live = cluster.layout.nodes / "n1" / "live.json"
    until(lambda: [*live_peaks(live).values()] == [2000.0] * 3)
    (folder / "go").touch()
    until(lambda: not cluster.run(["squeue", "-h"], check=True).stdout)

    def jobs() -> Any:
        table = json.loads(call("gpumem", "report", "--json", "--update").stdout)
        told = [job for job in table["jobs"] if job["wait_s"] is not None and job["end"] is not None]
        return told if len(told) == 3 else None

    rows = until(jobs)
    for row in rows:
        assert (row["state"], row["peak_mib"], row["model"], row["sharing"]) == (
            "COMPLETED",
            2000,
            "resnet50",
            "shared",
        )
        assert (row["job_name"], row["cluster"]) == ("job.sh", rows[0]["cluster"])
    depth = json.loads(call("gpumem", "report", "-j", str(rows[0]["job_id"]), "--json").stdout)["jobs"][0]
    curve = depth["runs"][0]["gpus"][0]["curve"]
    assert max(value for value in curve["memory_mib"] if value is not None) == 2000
    assert "memory alone takes 2 of its 29 shards" in depth["advice"]
    said = call("gpusbatch", "--dry-run", *words)
    assert "peak 2.0 GiB," in said.stderr
    assert "\n        remembered: 3 runs on a100 took 2.0 GiB" in said.stderr
    assert "asking for 2 GiB" in said.stderr or "2 for memory" in said.stderr
    assert "by=remembered" in said.stdout


def test_tasks_of_an_array_are_reported_by_their_names_and_as_one_sweep(
    make_cluster: Callable[..., Cluster], state_folder: Path
) -> None:
    # Without slurmdbd: the node itself asks Slurm which task of which array a job is.
    cluster = make_cluster(nodes=(NodeSpec("n1"),), hooks=True)
    folder, script = state_folder, state_folder / "job.sh"
    env = {"XDG_CACHE_HOME": str(folder)}
    peak = "$((2000 + 500 * SLURM_ARRAY_TASK_ID))"
    script.write_text(f"#!/bin/bash\n{hold_until(folder / 'go', peak)}\n")

    def call(command: str, *argv: str) -> Any:
        path = str(Path(sys.executable).with_name(command))
        return cluster.run([path, *argv], env=env, cwd=folder, timeout_s=120)

    words = ["--array=0-3%3", "--gpu", "h100", "--gpu-mem", "4G", "-o", "/dev/null", str(script)]
    array = call("gpusbatch", "--parsable", *words).stdout.strip()
    waiting = call("gpumem", "report", "-j", f"{array}_3")
    assert f"job {array}_3 has not started yet (" in waiting.stderr
    cluster.run(["scancel", f"{array}_3"], check=True)
    live = cluster.layout.nodes / "n1" / "live.json"
    until(lambda: sorted(peak or 0 for peak in verified_peaks(live).values()) == [2000.0, 2500.0, 3000.0])
    (folder / "go").touch()
    until(lambda: not cluster.run(["squeue", "-h"], check=True).stdout)

    def names() -> Any:
        shown = call("gpumem", "report", "-j", array, "-n", "-o", "JobID,Peak,GPU", "--update").stdout
        return shown if shown.count(f"{array}_") == 3 else None

    rows = [line.split() for line in until(names).splitlines()]
    # It ran on a100, whatever it was estimated for.
    assert rows == [[f"{array}_{task}", peak, "a100"] for task, peak in enumerate(["2.0G", "2.4G", "2.9G"])]
    listed = call("gpumem", "report", "-n", "-o", "JobID,Peak").stdout.split()
    assert listed == [f"{array}_[0-2]", "2.0G..2.9G"]
    assert call("gpumem", "report", "-j", f"{array}_1").stdout.startswith(f"Job {array}_1 ")
