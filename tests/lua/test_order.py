"""The site's own rules and ours in one job_submit.lua of a real slurmctld: the site chooses the order."""

from __future__ import annotations

import os
import re
import shutil
import time
from typing import Any, Tuple

import pytest

from slurm_gpumem.data import LUA_FILES
from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import default_nodes
from tests.lua.played import LUA_FOLDER, SITE, to_lua

pytestmark = pytest.mark.slurm

ASKS = "#!/bin/bash\n#GPUMEM mem=12G\n"
RULES = """
function slurm_job_submit(job_desc, part_list, submit_uid)
  local wants = (job_desc.tres_per_node or "") .. (job_desc.tres_per_job or "")
  if string.find(wants, "gpu", 1, true) then
    job_desc.time_limit = 77
    if job_desc.name == "refused" then
      slurm.log_user("%s", "site: no GPU for you")
      return slurm.ERROR
    end
    return slurm.SUCCESS
  end
  job_desc.time_limit = 33
  if job_desc.name == "faulty" then error("the site's own slip") end
end
"""
"""Rules that sites have: whoever asks for a gpu is treated in one way, everybody else in another."""


GPU_RULE, OTHER_RULE = "01:17:00", "00:33:00"
"""The time limits that they leave in the job."""


@pytest.fixture(scope="module")
def with_rules(make_module_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    folder = tmp_path_factory.mktemp("lua")
    for name in LUA_FILES:
        shutil.copy(LUA_FOLDER / name, folder)
    (folder / "gpumem_site.lua").write_text("return " + to_lua({**SITE, "separator": None}))
    (folder / "job_submit.lua").write_text(_script("after"))
    running: Cluster = make_module_cluster(
        nodes=default_nodes(1), job_submit_lua=str(folder / "job_submit.lua")
    )
    return running


def _script(order: str) -> str:
    example = (LUA_FOLDER / "job_submit.lua").read_text()
    ours = "".join(line + "\n" for line in example.splitlines() if line.endswith("-- gpumem"))
    modify = "function slurm_job_modify() return slurm.SUCCESS end\n"
    return RULES + modify + ours.replace(".after(", f".{order}(")


def _in_order(cluster: Cluster, order: str) -> None:
    path = cluster.layout.slurm_conf.parent / "job_submit.lua"
    path.write_text(_script(order))
    later = time.time() + {"after": 100, "before": 200}[order]
    os.utime(path, (later, later))


def _submit(cluster: Cluster, name: str) -> Tuple[str, str, str]:
    """What it asks for in the end, the time limit by the site's rules, and what was said."""
    words = ["sbatch", "--parsable", "-H", "-o", "/dev/null", "-J", name, "--gres=gpu:1"]
    done = cluster.run(words, input=ASKS)
    if done.returncode:
        return "refused", "", done.stderr
    shown = cluster.run(["scontrol", "show", "job", done.stdout.strip()], check=True).stdout
    cluster.run(["scancel", done.stdout.strip()], check=True)
    tres, limit = (
        re.search(pattern, shown) for pattern in (r"TresPerNode=gres[:/](\S+)", r"TimeLimit=(\S+)")
    )
    return tres[1] if tres else "", limit[1] if limit else "", done.stderr


def test_rules_that_match_gpu_see_the_request_as_written_when_ours_come_after(with_rules: Cluster) -> None:
    _in_order(with_rules, "after")
    assert _submit(with_rules, "shared")[:2] == ("shard:12", GPU_RULE)
    tres, _, said = _submit(with_rules, "refused")
    assert tres == "refused"
    assert "site: no GPU for you" in said
    assert "became" not in said


def test_rules_see_the_shards_when_ours_come_before_and_no_answer_is_a_yes(with_rules: Cluster) -> None:
    _in_order(with_rules, "before")
    assert _submit(with_rules, "shared")[:2] == ("shard:12", OTHER_RULE)
    assert _submit(with_rules, "refused")[:2] == ("shard:12", OTHER_RULE)


def test_an_error_in_the_sites_rules_stays_the_sites(with_rules: Cluster) -> None:
    _in_order(with_rules, "before")
    _submit(with_rules, "faulty")
    log = (with_rules.layout.log / "slurmctld.log").read_text()
    assert "the site's own slip" in log
    _in_order(with_rules, "after")
    assert _submit(with_rules, "shared")[0] == "shard:12"
