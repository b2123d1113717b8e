"""Sites that are set up otherwise than most, on real daemons: power saving, configless, very large arrays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, List, Tuple

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import default_nodes
from slurm_gpumem.site.snapshot import read_files
from tests.lua.played import LUA_FOLDER, SITE, to_lua
from tests.support.waiting import until

pytestmark = pytest.mark.slurm

PROGRAMS = Path(sys.executable).parent
TASKS = 100_000


@pytest.fixture(scope="module")
def unusual(make_module_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A site that saves power, has its plug-in in place and allows arrays of 100,000 tasks."""
    folder = tmp_path_factory.mktemp("lua")
    for path in LUA_FOLDER.glob("*.lua"):
        shutil.copy(path, folder)
    (folder / "gpumem_site.lua").write_text("return " + to_lua({**SITE, "separator": None}))
    made: Cluster = make_module_cluster(
        nodes=default_nodes(2),
        job_submit_lua=str(folder / "job_submit.lua"),
        extra_conf=(
            "SuspendProgram=/bin/true",
            "ResumeProgram=/bin/true",
            "SuspendTime=3600",
            "SuspendTimeout=1",
            "ResumeTimeout=30",
            f"MaxArraySize={TASKS + 1}",
            f"MaxJobCount={3 * TASKS}",
        ),
    )
    return made


def findings(cluster: Cluster, *options: str) -> List[Any]:
    done = cluster.run([str(PROGRAMS / "gpumem"), "doctor", "--json", *options], timeout_s=120)
    found: List[Any] = json.loads(done.stdout)["findings"]
    return found


def dry_run(cluster: Cluster, *options: str, **how: Any) -> str:
    done = cluster.run(
        [str(PROGRAMS / "gpusbatch"), "--dry-run", "--gpu-mem", "12G", *options, "--wrap", "true"], **how
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_array_of_100000_tasks_is_one_job_to_the_plugin_and_to_gpusbatch(unusual: Cluster) -> None:
    array = f"--array=0-{TASKS - 1}"
    log = unusual.layout.log / "slurmctld.log"
    script = "#!/bin/bash\n#GPUMEM mem=12G\n"
    done = unusual.run(["sbatch", "--parsable", "-H", array, "--gres=gpu:1", "-o", "/dev/null"], input=script)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("became --gres=shard:12") == 1
    mine = unusual.run(
        [str(PROGRAMS / "gpusbatch"), "-H", array, "--gpu-mem", "12G", "-o", "/dev/null", "--wrap", "true"]
    )
    assert mine.returncode == 0, mine.stderr
    listed = unusual.run(["squeue", "-h", "-o", "%i %b"], check=True).stdout.splitlines()
    assert len(listed) == 2
    assert all(line.endswith("shard:12") for line in listed)
    assert "gpumem: " not in log.read_text()
    unusual.run(["scancel", "--state=PENDING", *(line.split("_")[0] for line in listed)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace with a /run of its own")
@pytest.mark.skipif(
    bool(os.environ.get("GPUMEM_TEST_SLURM_ROOT")), reason="a tree's slurmd is not started by hand"
)
def test_a_configless_node_serves_hooks_and_gpusbatch_without_a_file_of_ours(state_folder: Path) -> None:
    inside = (
        f"mount -t tmpfs tmpfs /run && exec {sys.executable} -m tests.site.configless_cluster {state_folder}"
    )
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside],
        cwd=LUA_FOLDER.parent,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    if "permission denied" in done.stderr.lower():
        pytest.skip("no mounts may be made here")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["conf"].endswith("/conf-cache/slurm.conf")
    assert [job for job in found["jobs"] if job.isdigit()]
    assert "--gres=shard:12" in found["login"], found["said"]


def test_nodes_whose_power_is_off_are_there_for_jobs(unusual: Cluster) -> None:
    unusual.run(["scontrol", "update", "NodeName=n[1-2]", "State=POWER_DOWN_FORCE"], check=True)
    until(lambda: states(unusual).count("POWERED_DOWN") == 2, but=lambda: states(unusual))
    assert "nodes-down" not in [found["check"] for found in findings(unusual)]
    assert "--gres=shard:12" in dry_run(unusual, "-p", "gpu")
    setup = unusual.run([str(PROGRAMS / "gpumem"), "setup", "--untried"])
    assert "n[1-2]: 4 x a100" in setup.stdout + setup.stderr


def states(cluster: Cluster) -> str:
    shown = cluster.run(["scontrol", "-o", "show", "node"], check=True).stdout
    return " ".join(word for word in shown.split() if word.startswith("State="))


@pytest.mark.parametrize(("version", "beside"), [((23, 1, 9), True), ((23, 2, 0), False), ((22, 5, 8), True)])
def test_an_included_name_counts_from_slurm_conf_from_2302_on(
    tmp_path: Path, version: Tuple[int, ...], beside: bool
) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "slurm.conf").write_text("Include more/nodes.conf\n")
    (tmp_path / "more" / "nodes.conf").write_text("Include types.conf\n")
    (tmp_path / "more" / "types.conf").write_text("NodeName=beside\n")
    (tmp_path / "types.conf").write_text("NodeName=top\n")
    _, texts = read_files(str(tmp_path / "slurm.conf"), version)  # type: ignore[arg-type]
    assert ("more/types.conf" in texts, "types.conf" in texts) == (beside, not beside)
