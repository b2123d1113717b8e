"""The plug-in in a real slurmctld: what users see of it, and that it never stands in a job's way."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional, Sequence

import pytest
from played import LUA_FOLDER

from slurm_gpumem.devcluster.cluster import Cluster, up
from slurm_gpumem.devcluster.jobs import wait_for_job
from slurm_gpumem.devcluster.spec import ClusterSpec, NodeSpec, default_nodes
from slurm_gpumem.site.nodes import GpuGroup, NodeGroup
from slurm_gpumem.site.plan import SitePlan
from slurm_gpumem.site.render import lua_table
from slurm_gpumem.site.snapshot import parse_version

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
        for name in ("gpumem.lua", "gpumem_read.lua", "job_submit.lua"):
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


class Submitted:
    """A job that was submitted and has ended: what it asked for and printed."""

    def __init__(self, cluster: Cluster, options: Sequence[str], script: str, out: Path) -> None:
        done = cluster.run(["sbatch", "--parsable", "-o", str(out), *options], input=script)
        assert done.returncode == 0, done.stderr
        self.said = done.stderr
        self.id = done.stdout.strip()
        self.fields = wait_for_job(cluster, self.id)
        self.printed = out.read_text() if out.exists() else ""
        # show_job cuts a comment at a word with =, and ours have some.
        shown = cluster.run(["scontrol", "show", "job", self.id]).stdout
        self.comment = _line(shown, "Comment")
        self.admin_comment = _line(shown, "AdminComment")

    @property
    def tres(self) -> str:
        """What it asks of each node: "shard:12"."""
        return re.sub("^gres[:/]", "", self.fields.get("TresPerNode", ""))


def _line(text: str, key: str) -> str:
    match = re.search(rf"^\s*{key}=(.*?)\s*$", text, re.MULTILINE)
    return match[1] if match else ""


@pytest.mark.parametrize(
    ("options", "was", "tres"),
    [
        (["--gres=gpu:1"], "--gres=gpu:1", "shard:12"),
        (["--gpus-per-node=1"], "--gres=gpu:1", "shard:12"),
        (["--gpus-per-node=a100:1"], "--gres=gpu:a100:1", "shard:a100:12"),
        (["--gpus=1"], "--gpus=1", "shard:12"),
        (["--gpus=a100:1"], "--gpus=a100:1", "shard:a100:12"),
        (["--gpus-per-task=1", "--ntasks=1"], "--gpus-per-task=1", "shard:12"),
        ([], "none", "shard:12"),
    ],
)
def test_a_plain_sbatch_with_a_mem_line_gets_shards_and_its_steps_run(
    hooked: Cluster, tmp_path: Path, options: Sequence[str], was: str, tres: str
) -> None:
    script = ASKS + SEES + "\nsrun bash -c '" + SEES.replace('"', "") + "'\n"
    job = Submitted(hooked, options, script, tmp_path / "out")
    assert job.tres == tres
    assert job.fields.get("TresPerJob") is None
    assert job.admin_comment == f"gpumem/1:was={was}"
    assert job.comment == "gpumem/1:req=12288,by=mem,shards=12"
    assert f"became --gres={tres} (one GPU has 40)" in job.said
    assert job.said.count("gpumem") == 1
    gpu, shards = job.printed.splitlines()[0].split(":")
    assert (gpu.isdigit(), shards) == (True, "12")
    assert job.printed.splitlines()[1].startswith(gpu), job.printed
    assert job.fields["JobState"] == "COMPLETED"


def test_a_record_is_capped_at_one_gpu(hooked: Cluster, tmp_path: Path) -> None:
    job = Submitted(
        hooked, ["--gres=shard:a100:41", f"--comment=mine {RECORD}"], "#!/bin/sh\n", tmp_path / "out"
    )
    assert job.tres == "shard:a100:40"
    assert job.comment == f"mine {RECORD}"


def test_arrays_are_rewritten_as_one(hooked: Cluster, tmp_path: Path) -> None:
    job = Submitted(hooked, ["--array=1-2", "--gres=gpu:1"], ASKS, tmp_path / "out")
    assert job.tres == "shard:12"


@pytest.mark.parametrize(
    ("options", "script"),
    [
        (["--gres=gpu:1"], "#!/bin/sh\n"),
        (["--gpus=1", "--cpus-per-gpu=2"], "#!/bin/sh\n"),
        (["--gres=shard:3"], "#!/bin/sh\n"),
        (["--gres=gpu:2"], ASKS),
        (["--gres=gpu:1", "--exclusive"], ASKS),
        (["--gpus=1", "--cpus-per-gpu=2"], ASKS),
        (["--gres=gpu:1"], ASKS + "srun --gres=gpu:1 true\n"),
        (["--gres=gpu:1", f"--comment={RECORD.replace('shards=13', 'shards=0')}"], "#!/bin/sh\n"),
    ],
)
def test_a_job_that_is_not_ours_is_as_it_is_without_the_plugin(
    hooked: Cluster, cluster: Cluster, tmp_path: Path, options: Sequence[str], script: str
) -> None:
    seen = [Submitted(each, options, script, tmp_path / "out") for each in (hooked, cluster)]
    keys = (
        "TresPerNode",
        "TresPerJob",
        "Comment",
        "AdminComment",
        "NumCPUs",
        "MinMemoryNode",
        "MinMemoryCPU",
    )
    with_plugin, without = ({key: job.fields.get(key) for key in keys} for job in seen)
    assert with_plugin == without
    assert with_plugin["AdminComment"] is None


@pytest.mark.parametrize("command", [["srun"], ["salloc", "--quiet", "srun"]])
def test_srun_and_salloc_with_a_record_share_a_gpu(hooked: Cluster, command: Sequence[str]) -> None:
    first, *rest = command
    done = hooked.run([first, f"--comment={RECORD}", *rest, "bash", "-c", SEES])
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[0-9]:13", done.stdout.strip())
    assert "became --gres=shard:13" in done.stderr


def test_salloc_that_names_a_gpu_keeps_it_whole_and_its_steps_run(hooked: Cluster) -> None:
    done = hooked.run(
        ["salloc", "--quiet", "--gpus-per-node=1", f"--comment={RECORD}", "srun", "bash", "-c", SEES]
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[0-9]:", done.stdout.strip())
    assert "leave the GPU option out" in done.stderr


def test_job_modify_is_left_alone(hooked: Cluster, tmp_path: Path) -> None:
    held = hooked.run(["sbatch", "--parsable", "-H", "-o", "/dev/null"], input=ASKS)
    job = held.stdout.strip()
    assert hooked.run(["scontrol", "update", f"JobId={job}", "Gres=shard:39"]).returncode == 0
    shown = hooked.run(["scontrol", "show", "job", job]).stdout
    hooked.run(["scancel", job])
    assert "shard:39" in shown


def test_observe_changes_nothing_and_logs(make_cluster: Any, hook: Hook, tmp_path: Path) -> None:
    cluster = make_cluster(nodes=default_nodes(1), job_submit_lua=hook(tmp_path, mode="observe"))
    job = Submitted(cluster, ["--gres=gpu:1"], ASKS, tmp_path / "out")
    assert (job.tres, job.comment, job.admin_comment, job.said) == ("gpu:1", "", "", "")
    log = (cluster.layout.log / "slurmctld.log").read_text()
    assert "gpumem: observing only: gpumem: --gres=gpu:1 became --gres=shard:12" in log


def test_mps_sites_get_their_part_of_the_gpu(make_cluster: Any, hook: Hook, tmp_path: Path) -> None:
    lua = hook(tmp_path, gres="mps", mps_per_gpu=100)
    cluster = make_cluster(nodes=default_nodes(1), gres="mps", mps_per_gpu=100, job_submit_lua=lua)
    job = Submitted(
        cluster,
        ["--gres=gpu:1"],
        ASKS + "echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\nsrun true\n",
        tmp_path / "out",
    )
    assert job.tres == "mps:30"
    assert job.printed == "30\n"


def test_five_jobs_without_a_word_about_memory_share_one_node(
    make_cluster: Any, hook: Hook, tmp_path: Path
) -> None:
    node = NodeSpec("n1", gpus=4, cpus=64, memory_mib=64_000)
    groups = (NodeGroup("n1", (GpuGroup("a100", 4, 40960),), ("gpu", "whole"), 64, 64_000),)
    cluster = make_cluster(
        nodes=(node,),
        job_submit_lua=hook(tmp_path, groups=groups),
        extra_conf=("DefMemPerNode=0",),
    )
    jobs = [
        cluster.run(["sbatch", "--parsable", "-o", "/dev/null"], input=ASKS + "sleep 60\n").stdout.strip()
        for _ in range(5)
    ]
    for job in jobs:
        wait_for_job(cluster, job, ["RUNNING"])


@pytest.mark.parametrize(
    ("file", "text", "logged"),
    [
        ("gpumem.lua", "this is not lua", "gpumem"),
        ("gpumem.lua", "", None),
        ("gpumem.lua", None, "gpumem.lua"),
        ("gpumem_read.lua", "error('x')", "gpumem"),
        ("gpumem_site.lua", "return 3", "gpumem_site.lua"),
        ("gpumem_site.lua", None, "gpumem_site.lua"),
        ("gpumem.lua", "return { job_submit = function() error(nil) end }", None),
    ],
)
def test_with_the_plugin_broken_slurmctld_starts_and_takes_every_job(
    make_cluster: Any, hook: Hook, tmp_path: Path, file: str, text: Optional[str], logged: Optional[str]
) -> None:
    script = hook(tmp_path)
    if text is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_text(text)
    cluster = make_cluster(nodes=default_nodes(1), job_submit_lua=script)
    job = Submitted(cluster, ["--gres=gpu:1"], ASKS, tmp_path / "out")
    assert (job.tres, job.said, job.fields["JobState"]) == ("gpu:1", "", "COMPLETED")
    if logged:
        assert re.search(f"error: .*{logged}", (cluster.layout.log / "slurmctld.log").read_text())
