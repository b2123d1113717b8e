"""The accepted slowdown: the site's, the job's own, or none; and what --explain says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.formats.comment import parse_record
from slurm_gpumem.formats.remembered import Recipe, write_remembered

pytestmark = pytest.mark.slurm

RESNET50 = Path(__file__).parents[2] / "docs" / "examples" / "resnet50.txt"
BUSY = ("job.sh", "--model", str(RESNET50), "--batch-size", "32", "--estimator", "structural")
WRITTEN = ("job.sh", "--model", "summary.txt", "--batch-size", "256")


@pytest.fixture
def site(desk: Any) -> Any:
    """Writes the site's file; the environment that names it."""

    def write(text: str) -> dict[str, str]:
        path = desk.folder / "gpumem.toml"
        path.write_text(text)
        return {"GPUMEM_SITE_CONFIG": str(path)}

    return write


def asked(desk: Any, *argv: str, env: Any = None) -> Any:
    done = desk.call("--dry-run", "--json", *argv, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_without_a_setting_a_step_may_take_twice_as_long_and_the_user_hears_it(desk: Any) -> None:
    # With a server for each user, which is what nothing set means, a busy job does not share at 2.
    found = asked(desk, *BUSY)
    assert (found["max_slowdown"], found["whole_gpu"]) == (2, True)
    light = (*BUSY[:-3], "1", *BUSY[-2:])
    found = asked(desk, *light)
    assert found["shards"] == max(found["shards_by_memory"], found["shards_by_activity"])
    assert "expected slowdown while sharing " in desk.call("--dry-run", *light).stderr


def test_a_busy_job_asks_for_more_where_the_site_accepts_little_slowdown(desk: Any, site: Any) -> None:
    plain = asked(desk, *BUSY, env=site("[sharing]\nmax_slowdown = 100\n"))["shards"]
    loose = asked(desk, *BUSY, env=site("[sharing]\nmax_slowdown = 3\n"))["shards"]
    strict = asked(desk, *BUSY, env=site("[sharing]\nmax_slowdown = 1.3\n"))
    assert plain <= loose <= (strict["shards"] or 40)
    assert strict["whole_gpu"] or strict["shards_by_activity"] > strict["shards_by_memory"]
    assert strict["max_slowdown"] == 1.3


def test_the_request_and_its_record_reach_slurm(desk: Any, site: Any) -> None:
    env = site("[sharing]\nmax_slowdown = 3\n")
    job = desk.submit("-H", *BUSY, env=env)
    found = asked(desk, *BUSY, env=env)
    assert desk.gres(job) == f"shard:{found['shards']}"
    record = parse_record(desk.comment(job))
    assert record is not None
    assert (record.slow, record.sm is None) == ("3", False)
    assert abs((record.sm or 0) - found["utilization"]["sm_active"]) <= 1


def test_a_directive_accepts_another_slowdown_for_one_job(desk: Any, site: Any) -> None:
    env = site("[sharing]\nmax_slowdown = 3\n")
    usual = asked(desk, *BUSY, env=env)
    desk.script("job.sh", "true", "#GPUMEM max-slowdown=1.01")
    careful = asked(desk, *BUSY, env=env)
    assert careful["max_slowdown"] == 1.01
    assert careful["whole_gpu"] or careful["shards"] >= usual["shards"]


def test_a_partition_can_keep_activity_out(desk: Any, site: Any) -> None:
    text = "[sharing]\nmax_slowdown = 1.05\n[sharing.partition.gpu]\nmax_slowdown = 100\n"
    found = asked(desk, *BUSY, env=site(text))
    assert found["shards"] == found["shards_by_memory"]
    # A job may still say what it accepts itself.
    assert asked(desk, *BUSY, "--max-slowdown", "1.1", env=site(text))["max_slowdown"] == 1.1


def test_explain_says_which_of_the_two_decided_and_what_the_other_asked(desk: Any, site: Any) -> None:
    said = desk.call("--dry-run", "--explain", *BUSY, env=site("[sharing]\nmax_slowdown = 3\n")).stderr
    assert "alone on the GPU: SM activity" in said
    assert "share: by " in said
    assert " alone: " in said
    assert "keeps slowdowns within 3 (the site's limit)" in said
    ignored = site("[sharing]\nmax_slowdown = 100\n")
    assert "no slowdown limit counts" in desk.call("--dry-run", "--explain", *BUSY, env=ignored).stderr


def test_a_job_of_unknown_activity_gets_its_memorys_share_and_is_told(desk: Any, site: Any) -> None:
    env = site("[sharing]\nmax_slowdown = 1.1\n")
    found = asked(desk, *WRITTEN, env=env)
    assert found["utilization"] is None
    assert found["shards"] == found["shards_by_memory"]
    assert any("activity is not known" in warning for warning in found["warnings"])
    said = desk.call("--dry-run", "--explain", *WRITTEN, env=env).stderr
    assert "share: by memory; its activity is unknown" in said


def test_memory_by_hand_is_no_way_around_the_rule_where_the_site_says_what_to_assume(
    desk: Any, site: Any
) -> None:
    by_hand = ("job.sh", "--gpu-mem", "4G")
    limit = '[sharing]\nmax_slowdown = 3\n[node]\nmps = "shared"\n'
    assert asked(desk, *by_hand, env=site(limit))["shards"] == 4
    env = site(limit.replace("\n", "\nunknown_activity = 0.5\n", 1))
    found = asked(desk, *by_hand, env=env)
    assert found["shards"] == found["shards_by_activity"] > found["shards_by_memory"] == 4
    said = desk.call("--dry-run", *by_hand, env=env).stderr
    assert "4 for memory, 11 for GPU load (not measured yet: 50 % busy)" in said
    light = asked(desk, *by_hand, env=site(limit.replace("\n", "\nunknown_activity = 0.05\n", 1)))
    assert light["shards"] == 4


def test_what_earlier_runs_of_the_script_showed_is_taken_before_what_the_site_assumes(
    desk: Any, site: Any
) -> None:
    env = site('[sharing]\nmax_slowdown = 3\nunknown_activity = 0.1\n[node]\nmps = "shared"\n')
    by_hand = ("job.sh", "--gpu-mem", "4G")
    record = parse_record(desk.call("--dry-run", *by_hand, env=env).stdout.partition("--comment=")[2])
    assert record is not None
    recipe = Recipe(record.fingerprint, "", "", "", "")
    file = desk.folder / "remembered.json"
    write_remembered(file, {}, {recipe: {"a100": [90]}})
    said = desk.call("--dry-run", *by_hand, env={**env, "GPUMEM_REMEMBERED": str(file)}).stderr
    assert "for GPU load (90 % busy in earlier runs)" in said
