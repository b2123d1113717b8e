"""setup and doctor on real daemons."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, List

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import default_nodes
from slurm_gpumem.site.setup.plan import SPREADING
from slurm_gpumem.slurm.client import parse_version

pytestmark = pytest.mark.slurm


def gpumem(cluster: Cluster, *args: str) -> Any:
    return cluster.run([str(Path(sys.executable).with_name("gpumem")), *args])


def checks(cluster: Cluster, severity: str) -> List[str]:
    answer = json.loads(gpumem(cluster, "doctor", "--json").stdout)
    return [finding["check"] for finding in answer["findings"] if finding["severity"] == severity]


def test_what_setup_writes_makes_a_cluster_share_and_the_doctor_content(
    cluster: Cluster, make_cluster: Any, tmp_path: Path
) -> None:
    done = gpumem(cluster, "setup", "--output", str(tmp_path / "new"))
    assert done.returncode == 0, done.stderr
    assert "+JobSubmitPlugins=lua" in done.stdout
    assert "gpu" in (tmp_path / "new" / "gres.conf").read_text()

    shared = make_cluster(job_submit_lua=str(tmp_path / "new" / "job_submit.lua"))
    asked = shared.run(
        ["sbatch", "-H", "--gres=gpu:a100:1", "-o", "/dev/null"], input="#!/bin/sh\n#GPUMEM mem=12G\n"
    )
    assert "--gres=gpu:a100:1 became --gres=shard:a100:12 (one GPU has 40)" in asked.stderr
    assert gpumem(shared, "doctor", "--ignore", "mixed-jobs").returncode == 0
    again = gpumem(shared, "setup")
    assert "gpumem_site.lua" not in again.stdout


def test_setup_changes_no_file_of_the_cluster(cluster: Cluster) -> None:
    folder = cluster.layout.slurm_conf.parent
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.iterdir()}
    assert gpumem(cluster, "setup").returncode == 0
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.iterdir()} == before


def test_the_doctor_finds_what_is_wrong_on_a_live_cluster(make_cluster: Any) -> None:
    cluster = make_cluster(
        nodes=default_nodes(1),
        extra_conf=(
            "PartitionName=alone Nodes=n1 OverSubscribe=EXCLUSIVE",
            "Prolog=/bin/true",
        ),
    )
    found = checks(cluster, "warning")
    assert {"exclusive-partition", "default-memory", "plugin-off", "prolog-flags", "prolog-timeout"} <= set(
        found
    )
    plain = gpumem(cluster, "doctor")
    assert plain.returncode == 1
    assert plain.stdout.startswith("GPUMEM WARNING - Slurm ")
    assert plain.stdout.count("\n    fix: ") == len(found) + len(checks(cluster, "note"))


def test_mixed_jobs_are_critical_where_slurm_lets_them_collide(make_cluster: Any) -> None:
    cluster = make_cluster(nodes=default_nodes(1))
    for gres in ("gpu:1", "shard:3"):
        cluster.run(["sbatch", "-H", "-o", "/dev/null", f"--gres={gres}", "--wrap", "true"], check=True)
    version = json.loads(gpumem(cluster, "doctor", "--json").stdout)["slurm_version"]
    expected = ["mixed-jobs"] * (1 if version < "23.02.6" else 0)
    assert [check for check in checks(cluster, "critical") if check == "mixed-jobs"] == expected


def test_limits_without_a_twin_are_found_in_the_database(make_cluster: Any) -> None:
    cluster = make_cluster(nodes=default_nodes(1), accounting=True)
    cluster.run(["sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxTRESPerUser=gres/gpu=2"], check=True)
    answer = gpumem(cluster, "doctor").stdout
    assert "sacctmgr modify qos where name=normal set MaxTRESPerUser=gres/shard=80" in answer
    twin = ["qos", "where", "name=normal", "set", "MaxTRESPerUser=gres/shard=80"]
    done = cluster.run(["sacctmgr", "-i", "modify", *twin])
    assert done.returncode == 0, done.stderr
    assert "limit-twin" not in gpumem(cluster, "doctor").stdout


def test_a_dead_controller_is_unknown(make_cluster: Any) -> None:
    cluster = make_cluster(nodes=default_nodes(1))
    cluster.stop()
    done = gpumem(cluster, "doctor")
    assert done.returncode == 3
    assert done.stdout.startswith("GPUMEM UNKNOWN - Slurm does not answer")


def test_a_slurm_conf_that_stops_every_command_is_named(make_cluster: Any) -> None:
    cluster = make_cluster(nodes=default_nodes(1))
    if parse_version(cluster.run(["sinfo", "--version"]).stdout) >= SPREADING:
        pytest.skip("this Slurm knows LL_SHARED_GRES")
    conf = cluster.layout.slurm_conf
    good = conf.read_text()
    conf.write_text(good.replace("CR_Core_Memory", "CR_Core_Memory,LL_SHARED_GRES"))
    done = gpumem(cluster, "doctor")
    conf.write_text(good)
    assert done.returncode == 2
    assert "ll-shared-gres: slurm.conf has LL_SHARED_GRES" in done.stdout


def test_a_cluster_of_ones_own_with_hooks_has_them_whole(make_cluster: Any) -> None:
    cluster = make_cluster(nodes=default_nodes(1), hooks=True)
    broken = [name for name in checks(cluster, "critical") if name.startswith("hook")]
    assert broken == []
