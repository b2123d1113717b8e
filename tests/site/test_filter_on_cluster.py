"""The submission filter on a live site: put in place as setup proposes it, and taken out again."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any, Dict

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import default_nodes
from slurm_gpumem.formats.comment import parse_record
from tests.support.other_user import user_python

pytestmark = pytest.mark.slurm
OWN = """\
function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end
function slurm_cli_post_submit(offset, job_id, step_id) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, offset)
  if options["job-name"] == "refused" then return slurm.ERROR end
  return slurm.SUCCESS
end
"""
FILES = ("cli_filter.lua", "gpumem_filter.lua")


def gpumem(cluster: Cluster, *args: str) -> Any:
    return cluster.run([str(Path(sys.executable).with_name("gpumem")), *args])


def comment(cluster: Cluster, job: str) -> Any:
    shown = cluster.run(["squeue", "-h", "-j", job, "-o", "%k"], check=True).stdout
    return parse_record(shown.strip())


def findings(cluster: Cluster) -> Dict[str, str]:
    answer = json.loads(gpumem(cluster, "doctor", "--json").stdout)
    return {found["check"]: found["what"] for found in answer["findings"] if "filter" in found["check"]}


def test_the_filter_goes_in_and_out_as_setup_says_and_no_submission_is_refused(
    make_cluster: Any, tmp_path: Path
) -> None:
    cluster = make_cluster(nodes=default_nodes(1))
    conf, job = cluster.layout.conf, tmp_path / "job.sh"
    job.write_text("#!/bin/sh\n#SBATCH -H -o /dev/null --gres=gpu:1\ntrue\n")
    (conf / "cli_filter.lua").write_text(OWN)

    def submitted(*words: str) -> Any:
        done = cluster.run(["sbatch", "--parsable", *words, str(job)])
        assert done.returncode == 0, done.stderr
        return comment(cluster, done.stdout.strip())

    def proposal(name: str) -> str:
        done = gpumem(cluster, "setup", "--untried", "--mode", "known", "--output", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        return str(done.stderr)

    before = (conf / "slurm.conf").read_text()
    assert "plain sbatch, first step" in proposal("first")
    assert "CliFilterPlugins" not in (tmp_path / "first" / "slurm.conf").read_text()
    assert "+python=" not in proposal("again")
    for name in (*FILES, "gpumem.toml"):
        shutil.copy(tmp_path / "first" / name, conf)
        assert submitted() is None
    assert set(findings(cluster)) == {"filter-off"}

    assert "plain sbatch, second step" in proposal("second")
    lines = (tmp_path / "second" / "slurm.conf").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("CliFilterPlugins")]
    (conf / "slurm.conf").write_text(f"{before}{line}\n")
    record = submitted()
    assert (record.shards, bool(record.fingerprint)) == (0, True)
    closed = user_python() != (sys.executable, {})  # as in a home directory
    assert set(findings(cluster)) == ({"no-filter"} if closed else set())
    # The site's own rules come first, and what they refuse is refused.
    assert cluster.run(["sbatch", "-J", "refused", str(job)]).returncode != 0
    assert "plain sbatch" not in proposal("third")

    # Without our files jobs go as they are typed; without cli_filter.lua none goes at all.
    (conf / "gpumem_filter.lua").unlink()
    assert submitted() is None
    (conf / "cli_filter.lua").rename(conf / "away.lua")
    assert cluster.run(["sbatch", str(job)]).returncode != 0
    assert "is not there" in findings(cluster)["filter-missing"]
    # Hence slurm.conf is first on the way back.
    (conf / "away.lua").rename(conf / "cli_filter.lua")
    (conf / "slurm.conf").write_text(before)
    assert submitted() is None
    (conf / "cli_filter.lua").unlink()
    assert submitted() is None
