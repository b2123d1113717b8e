"""A job of which nothing is said: measured the first time, shared by that the next time."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Iterator, Tuple

import pytest

from slurm_gpumem.devcluster import demo
from slurm_gpumem.devcluster.cluster import Cluster, up
from slurm_gpumem.devcluster.demo import wait_for_job
from slurm_gpumem.devcluster.spec import ClusterSpec, default_nodes
from slurm_gpumem.formats.comment import CommentRecord, parse_record
from slurm_gpumem.formats.remembered import Recipe, write_remembered
from tests.support.slurm_jobs import hold_until, live_peaks
from tests.support.waiting import remove_tree, until

GPUSBATCH = str(Path(sys.executable).with_name("gpusbatch"))
HEAD = "#SBATCH --gres=gpu:1 -o out"


def _record(dry_run: str) -> CommentRecord:
    record = parse_record(dry_run.partition("--comment=")[2])
    assert record is not None
    return record


def test_an_unknown_script_keeps_its_whole_gpu_and_says_what_could_be_done(desk: Any) -> None:
    desk.script("job.sh", "python train.py --batch-size 64 --seed $1", HEAD)
    done = desk.call("--dry-run", "job.sh", "1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("gpumem: ") == 1
    assert "keeps its whole GPU and is measured" in done.stderr
    assert "--trace" in done.stderr
    assert "--gres" not in done.stdout
    assert _record(done.stdout).batch is None
    assert _record(done.stdout).shards == 0


@pytest.mark.parametrize(
    ("peaks", "shards"), [([10000], 12), ([10000, 9900], 11), ([10000] * 5, 11), ([10000, 4000], 16)]
)
def test_earlier_runs_decide_with_a_margin_that_shrinks_with_their_number(
    desk: Any, peaks: Any, shards: int
) -> None:
    desk.script("job.sh", "python train.py --batch-size 64", HEAD)
    key = _record(desk.call("--dry-run", "job.sh").stdout).fingerprint
    file = desk.folder / "remembered.json"
    write_remembered(file, {Recipe(key, "", "", "", ""): {"a100": peaks}})
    env = {"GPUMEM_REMEMBERED": str(file)}
    done = desk.call("--dry-run", "job.sh", env=env)
    assert f"--gres=shard:{shards} " in done.stdout, done.stderr
    assert f"job.sh, remembered: {len(peaks)} run" in done.stderr
    assert _record(done.stdout).fingerprint == key
    other = desk.script("other.sh", "python train.py --batch-size 65", HEAD)
    assert "keeps its whole GPU" in desk.call("--dry-run", other.name, env=env).stderr
    alone = desk.call("--dry-run", "--exclusive-gpu", "job.sh", env=env)
    assert "asking for a whole GPU" in alone.stderr


def test_a_script_that_starts_one_with_a_gpu_step_keeps_its_whole_gpu(desk: Any) -> None:
    desk.script("inner.sh", "srun --gres=gpu:1 python train.py")
    desk.script("job.sh", "bash inner.sh", HEAD)
    key = _record(desk.call("--dry-run", "job.sh").stdout).fingerprint
    file = desk.folder / "remembered.json"
    write_remembered(file, {Recipe(key, "", "", "", ""): {"a100": [10000]}})
    done = desk.call("--dry-run", "job.sh", env={"GPUMEM_REMEMBERED": str(file)})
    assert "an srun in a script that it starts asks for a GPU itself" in done.stderr
    assert "shard:" not in done.stdout
    desk.script("inner.sh", "srun python train.py")
    key = _record(desk.call("--dry-run", "job.sh").stdout).fingerprint
    write_remembered(file, {Recipe(key, "", "", "", ""): {"a100": [10000]}})
    assert "shard:" in desk.call("--dry-run", "job.sh", env={"GPUMEM_REMEMBERED": str(file)}).stdout


def test_what_earlier_runs_kept_busy_is_recorded_so_that_reports_can_say_what_sharing_gained(
    desk: Any,
) -> None:
    desk.script("job.sh", "python train.py --batch-size 64", HEAD)
    key = _record(desk.call("--dry-run", "job.sh").stdout).fingerprint
    recipe = Recipe(key, "", "", "", "")
    file = desk.folder / "remembered.json"
    write_remembered(file, {recipe: {"a100": [10000]}}, {recipe: {"a100": [30]}})
    done = desk.call("--dry-run", "job.sh", env={"GPUMEM_REMEMBERED": str(file)})
    record = _record(done.stdout)
    assert (record.estimator, record.sm, record.sm_by) == ("remembered", 30, "remembered"), done.stderr


def test_a_site_may_share_first_runs_by_a_size_of_its_own(desk: Any) -> None:
    desk.script("job.sh", "python train.py --batch-size 64", HEAD)
    done = desk.call("--dry-run", "job.sh", env={"GPUMEM_SHARING_FIRST_RUN_MIB": "8192"})
    assert "--gres=shard:8 " in done.stdout, done.stderr
    assert "asking for 8 GiB (8 of 40 shards on an a100) as the site sets for first runs" in done.stderr
    assert _record(done.stdout).fingerprint.startswith("s")


def test_without_slurm_the_job_goes_to_sbatch_anyway(bare_desk: Any) -> None:
    bare_desk.script("job.sh", "python train.py", HEAD)
    done = bare_desk.call("--dry-run", "job.sh", env={"PATH": "/usr/bin:/bin", "SLURM_CONF": "/nowhere"})
    assert done.returncode == 0, done.stderr


@pytest.fixture
def site() -> Iterator[Tuple[Cluster, Path]]:
    """A cluster whose nodes measure their jobs."""
    folder = Path(tempfile.mkdtemp(prefix="gpumem-"))
    folder.chmod(0o755)
    cluster = up(ClusterSpec(nodes=default_nodes(1), state=folder / "cluster", hooks=True))
    try:
        yield cluster, folder
    finally:
        cluster.stop()
        remove_tree(folder)


@pytest.mark.slurm
def test_a_script_without_a_model_is_measured_and_shares_a_gpu_the_next_time(site: Any) -> None:
    cluster, folder = site
    script = folder / "job.sh"
    hold = hold_until(folder / "go", 9000, "--name $1")
    script.write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:1 -o out\n{hold}\n")
    env = {"XDG_CACHE_HOME": str(folder)}
    first = cluster.run([GPUSBATCH, "--parsable", "job.sh", "one"], env=env, cwd=folder)
    assert first.returncode == 0, first.stderr
    assert "keeps its whole GPU and is measured" in first.stderr
    job = first.stdout.strip()
    until(lambda: live_peaks(cluster.layout.nodes / "n1" / "live.json").get(job) == 9000.0)
    (folder / "go").touch()
    assert wait_for_job(cluster, job, timeout_s=120)["JobState"] == "COMPLETED"
    demo.wait_for_records(cluster, [job], tasks=0)
    again = cluster.run([GPUSBATCH, "--dry-run", "job.sh", "one"], env=env, cwd=folder)
    assert "remembered: 1 run on a100 took 8.8 GiB" in again.stderr, again.stderr
    assert "--gres=shard:11 " in again.stdout
