"""The plug-in in a real slurmctld: what users see of it, and that it never stands in a job's way."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional, Sequence

import pytest

from slurm_gpumem.data import LUA_FILES
from slurm_gpumem.devcluster.cluster import Cluster, up
from slurm_gpumem.devcluster.demo import wait_for_job
from slurm_gpumem.devcluster.spec import ClusterSpec, default_nodes
from slurm_gpumem.site.nodes import GpuGroup, NodeGroup
from slurm_gpumem.site.setup.plan import SitePlan
from slurm_gpumem.site.setup.render import lua_table
from slurm_gpumem.slurm.client import parse_version
from tests.lua.played import LUA_FOLDER

pytestmark = pytest.mark.slurm

Hook = Callable[..., str]
RECORD = "gpumem/1:est=12045,req=13312,by=structural,shards=13"
ASKS = "#!/bin/bash\n#GPUMEM mem=12G\n"
SEES = 'echo "$CUDA_VISIBLE_DEVICES:$SLURM_SHARDS_ON_NODE"'


@pytest.fixture(scope="module")
def hook(cluster: Cluster) -> Hook:
    """Fills a folder with the plug-in and the site table of a plan; returns its job_submit.lua."""
    version = parse_version(cluster.run(["sinfo", "--version"], check=True).stdout)

    def fill(folder: Path, **plan: Any) -> str:
        for name in (*LUA_FILES, "job_submit.lua"):
            shutil.copy(LUA_FOLDER / name, folder)
        fields: Dict[str, Any] = {
            "groups": (NodeGroup("n[1-2]", (GpuGroup("a100", 4, 40960),), ("gpu", "whole"), 64, 512_000),),
            "partitions": ("gpu", "whole"),
            "default_partition": "gpu",
            "reserve_mib": 0,
            "version": version,
            **plan,
        }
        (folder / "gpumem_site.lua").write_text(lua_table(SitePlan(**fields)))
        return str(folder / "job_submit.lua")

    return fill


@pytest.fixture(scope="module")
def hooked(hook: Hook) -> Iterator[Cluster]:
    """A cluster with the plug-in in mode opt-in."""
    root = os.environ.get("GPUMEM_TEST_SLURM_ROOT")
    with tempfile.TemporaryDirectory(prefix="gpumem-") as state, tempfile.TemporaryDirectory() as lua:
        os.chmod(state, 0o755)
        running = up(
            ClusterSpec(
                state=Path(state), slurm_root=Path(root) if root else None, job_submit_lua=hook(Path(lua))
            )
        )
        yield running
        running.stop()


class Job:
    """A submitted job: what sbatch said and what Slurm shows of it."""

    def __init__(self, cluster: Cluster, options: Sequence[str], script: str) -> None:
        done = cluster.run(["sbatch", "--parsable", *options], input=script)
        assert done.returncode == 0, done.stderr
        self.said = done.stderr
        self.id = done.stdout.strip()
        self.shown = cluster.run(["scontrol", "show", "job", self.id], check=True).stdout

    @classmethod
    def held(cls, cluster: Cluster, options: Sequence[str], script: str) -> Job:
        """A job that is looked at and never runs."""
        job = cls(cluster, ["-H", "-o", "/dev/null", *options], script)
        cluster.run(["scancel", job.id], check=True)
        return job

    def field(self, key: str) -> str:
        """A field of `scontrol show job`, "" when it is not shown."""
        return _line(self.shown, key) or _word(self.shown, key)

    @property
    def tres(self) -> str:
        """What it asks of each node: "shard:12"."""
        return re.sub("^gres[:/]", "", self.field("TresPerNode"))


def _word(text: str, key: str) -> str:
    match = re.search(rf"\b{key}=(\S*)", text)
    return match[1] if match else ""


def _line(text: str, key: str) -> str:
    match = re.search(rf"^\s*{key}=(.*?)\s*$", text, re.MULTILINE)
    return match[1] if match else ""


@pytest.mark.parametrize(
    ("options", "was", "tres"),
    [
        (["--gres=gpu:1"], "--gres=gpu:1", "shard:12"),
        (["--gpus=a100:1"], "--gpus=a100:1", "shard:a100:12"),
    ],
)
def test_a_plain_sbatch_with_a_mem_line_gets_shards_and_its_steps_run(
    hooked: Cluster, tmp_path: Path, options: Sequence[str], was: str, tres: str
) -> None:
    out = tmp_path / "out"
    script = ASKS + SEES + "\nsrun bash -c '" + SEES.replace('"', "") + "'\n"
    job = Job(hooked, ["-o", str(out), *options], script)
    assert job.tres == tres
    assert job.field("TresPerJob") == ""
    assert job.field("AdminComment") == f"gpumem/1:was={was}"
    assert job.field("Comment") == "gpumem/1:req=12288,by=mem,shards=12"
    assert job.said.strip().endswith(f"became --gres={tres} (one GPU has 40)")
    assert wait_for_job(hooked, job.id)["JobState"] == "COMPLETED"
    batch, step = out.read_text().splitlines()
    assert re.fullmatch("[0-3]:12", batch)
    assert step.startswith(batch[:2])


def test_a_plain_sbatch_on_two_nodes_gets_shards_of_each_and_a_step_runs_on_both(
    hooked: Cluster, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    script = ASKS + "srun bash -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'\n"
    job = Job(hooked, ["-o", str(out), "--nodes=2", "--gres=gpu:1"], script)
    assert job.tres == "shard:12"
    assert wait_for_job(hooked, job.id)["JobState"] == "COMPLETED"
    shown = hooked.run(["scontrol", "show", "job", job.id], check=True).stdout
    assert _word(shown, "NumNodes") == "2"
    nodes = sorted(line.split()[0] for line in out.read_text().splitlines())
    assert nodes == ["n1", "n2"]
    # As many CPUs on each node as its share has.
    assert _word(shown, "CPUs/Task") == "4"
    assert _word(shown, "NumCPUs") == "8"


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("model=net.txt", "gpumem: job not changed: sbatch estimates nothing here (no cli_filter), "),
        (
            "batch-size=64 memory-line=1/abcd/x/adam.fp32/none.0.0/64/64,900,900",
            "memory-line= is ignored; write ",
        ),
    ],
)
def test_a_line_that_sbatch_cannot_use_is_one_hint_and_the_job_keeps_its_gpu(
    hooked: Cluster, key: str, hint: str
) -> None:
    job = Job.held(hooked, ["--gres=gpu:1"], f"#!/bin/bash\n#GPUMEM {key}\n")
    assert job.tres == "gpu:1"
    assert hint in job.said
    assert len(job.said.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "script"),
    [
        (["--gres=gpu:1"], "#!/bin/sh\n"),
        (["--gres=gpu:2"], ASKS),
        (["--gres=gpu:1"], ASKS + "srun --gres=gpu:1 true\n"),
    ],
)
def test_a_job_that_is_not_ours_is_as_it_is_without_the_plugin(
    hooked: Cluster, cluster: Cluster, options: Sequence[str], script: str
) -> None:
    with_plugin, without = (_but_ids(Job.held(each, options, script).shown) for each in (hooked, cluster))
    assert with_plugin == without


def _but_ids(shown: str) -> str:
    """What Slurm shows of a job but for its number, its times, and where it was submitted."""
    return re.sub(r"\b(JobId|\w*Time|Priority|WorkDir|LastSchedEval|AllocNode:Sid|SubmitLine)=\S*", "", shown)


def test_salloc_with_a_record_shares_a_gpu(hooked: Cluster) -> None:
    done = hooked.run(["salloc", f"--comment={RECORD}", "srun", "bash", "-c", SEES])
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[0-9]:13", done.stdout.strip())
    assert "became --gres=shard:13" in done.stderr


def test_job_modify_is_left_alone(hooked: Cluster) -> None:
    job = Job(hooked, ["-H", "-o", "/dev/null"], ASKS)
    assert hooked.run(["scontrol", "update", f"JobId={job.id}", "Gres=shard:39"]).returncode == 0
    shown = hooked.run(["scontrol", "show", "job", job.id]).stdout
    hooked.run(["scancel", job.id])
    assert "shard:39" in shown


def test_with_the_plugin_broken_slurmctld_starts_and_takes_every_job(
    make_cluster: Any, hook: Hook, tmp_path: Path
) -> None:
    script = hook(tmp_path)
    _break(tmp_path / "gpumem.lua", "this is not lua")
    cluster = make_cluster(nodes=default_nodes(1), job_submit_lua=script)
    job = Job(cluster, ["--gres=gpu:1", "-o", "/dev/null"], ASKS)
    assert (job.tres, job.said) == ("gpu:1", "")
    assert wait_for_job(cluster, job.id)["JobState"] == "COMPLETED"
    assert re.search("error: .*gpumem.lua", (cluster.layout.log / "slurmctld.log").read_text())


def test_breaking_the_plugin_under_a_running_slurmctld_refuses_no_job(
    make_cluster: Any, hook: Hook, tmp_path: Path
) -> None:
    cluster = make_cluster(nodes=default_nodes(1), job_submit_lua=hook(tmp_path))
    folder, later = cluster.layout.slurm_conf.parent, time.time()
    for file, text in (
        ("gpumem.lua", ""),
        ("gpumem.lua", None),
        ("gpumem_read.lua", "error('x')"),
        ("gpumem_site.lua", "return 3"),
        ("gpumem.lua", "return { job_submit = function() error(nil) end }"),
    ):
        for path in tmp_path.glob("*.lua"):
            shutil.copy(path, folder)
        later += 10
        os.utime(folder / "job_submit.lua", (later, later))
        assert Job.held(cluster, ["--gres=gpu:1"], ASKS).tres == "shard:12"
        _break(folder / file, text)
        later += 10
        os.utime(folder / "job_submit.lua", (later, later))
        assert Job.held(cluster, ["--gres=gpu:1"], ASKS).tres == "gpu:1", (file, text)


def _break(path: Path, text: Optional[str]) -> None:
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
