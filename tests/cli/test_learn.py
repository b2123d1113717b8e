"""`gpumem learn` on folders of job records as nodes write them, through the real command."""

from __future__ import annotations

import json
import random
from math import exp
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem import estimate
from tests.support.learning_site import Site

SUMMARY = Path(__file__).resolve().parents[2] / "docs" / "examples" / "resnet50.txt"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def fill(site: Site, jobs: int = 60, models: int = 12, beyond: int = 900, **more: Any) -> None:
    """Jobs that took `beyond` MiB more than estimated, give or take two per cent."""
    draw = random.Random(1)
    for number in range(jobs):
        est = draw.randint(2000, 20_000)
        took = round((est + beyond) * exp(draw.gauss(0, 0.02)))
        site.record(number % models, est, round(est * 1.3), took, **more)


def test_too_little_data_is_refused_and_said(site: Site) -> None:
    fill(site, 30, 4)
    site.record(1, 2000, 3000, 2500, by="mem")
    done = site.learn()
    assert done.returncode == 1
    assert "a100: 30 jobs of 4 models by 7 users" in done.stderr
    assert "at least 10 jobs of 5 models by 3 users" in done.stderr
    assert "1 not estimated by corrected or trace" in done.stdout
    assert not site.learned.exists()


def test_a_folder_that_is_not_there_is_refused(site: Site) -> None:
    done = site.learn("--records", "/nonexistent")
    assert (done.returncode, "/nonexistent: is no folder" in done.stderr) == (2, True)


def test_no_records_at_all_is_the_same_answer(site: Site) -> None:
    done = site.learn()
    assert (done.returncode, "no usable jobs" in done.stderr) == (1, True)


@pytest.mark.parametrize("beyond", [900, -400])
def test_the_constant_is_written_with_its_count_and_spread(site: Site, beyond: int) -> None:
    fill(site, 200, 20, beyond)
    done = site.learn()
    assert done.returncode == 0, done.stderr
    constant = site.constants["a100"]
    assert constant.mib == pytest.approx(beyond, abs=60)
    assert 0 < constant.spread_mib < 400
    assert (constant.jobs, constant.users) == (200, 7)
    assert f"a100: {constant.mib:+,} MiB (200 jobs of 7 users" in done.stdout
    assert "gpumem-learned.json written" in done.stderr


def test_a_site_whose_jobs_run_out_of_memory_asks_for_more(site: Site) -> None:
    site.fill(400, 40, 1.25, 0.1, margin=1.15)
    assert site.learn().returncode == 0
    # Most runs above the request ended at their limit: nobody saw how much they needed.
    assert site.constants["a100"].mib > 1000


def test_jobs_that_were_cut_short_below_their_estimate_say_nothing(site: Site) -> None:
    fill(site)
    for number in range(100):
        site.record(number % 12, 9000, 10_000, 500, state="CANCELLED")
    done = site.learn()
    assert "100 cut short below their estimate" in done.stdout
    assert site.constants["a100"].mib == pytest.approx(900, abs=100)


def test_the_same_jobs_again_change_nothing(site: Site) -> None:
    fill(site)
    assert site.learn().returncode == 0
    before = site.learned.read_bytes()
    done = site.learn()
    assert (done.returncode, "in force already" in done.stderr) == (1, True)
    assert site.learned.read_bytes() == before


def test_the_file_before_is_kept_also_one_of_an_older_version(site: Site) -> None:
    site.learned.write_text(old := '{"format": "gpumem-learned/2", "layers": []}')
    fill(site)
    done = site.learn()
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path(f"{site.learned}.1").read_text() == old
    assert "the one before is" in done.stderr


def test_a_dry_run_writes_nothing(site: Site) -> None:
    fill(site)
    done = site.learn("--dry-run")
    assert done.returncode == 0
    assert "was not written" in done.stderr
    assert not site.learned.exists()


def test_a_retried_job_counts_once_by_the_run_that_finished(site: Site) -> None:
    for job in range(1000, 1100):
        site.record(job % 10, 4000, 4096, 0, state="OOM", job=job, uid=job)
        site.record(job % 10, 4000, 4096, 5000, job=job, uid=job, restarts=1, limit=40960)
    told = json.loads(site.learn("--json", "--dry-run").stdout)
    assert told["gpus"] == {"a100": {"mib": 1000, "spread_mib": 0, "jobs": 100, "users": 100}}
    assert told["written"] is False


def test_records_to_which_a_constant_was_added_are_read_as_they_were_before(site: Site) -> None:
    draw = random.Random(3)
    for number in range(100):
        est = draw.randint(2000, 20_000)
        base = f"{est}+{round(est * 1.3)}"
        site.record(number % 10, est + 300, round(est * 1.3), est + 300, by="corrected+site", base=base)
    told = json.loads(site.learn("--json", "--dry-run").stdout)
    assert told["gpus"]["a100"]["mib"] == 300


def test_five_models_of_three_users_teach_a_constant_texts_and_traces_together(site: Site) -> None:
    draw = random.Random(4)
    for number in range(10):
        est = draw.randint(2000, 20_000)
        by = ("corrected", "trace")[number % 2]
        site.record(number % 5, est, round(est * 1.1), est + 900, by=by, uid=number % 3)
    assert site.learn().returncode == 0
    assert site.constants["a100"].mib == 900


def test_each_type_of_gpu_with_enough_jobs_has_a_constant_of_its_own(site: Site) -> None:
    for number in range(120):
        gpu, beyond = (("NVIDIA A100-SXM4-40GB", 900), ("Tesla V100-SXM2-32GB", -200))[number % 2]
        est = 3000 + 85 * number
        site.record(
            number // 2 % 12, est, round(est * 1.2), est + beyond, gpu=gpu, uid=1000 + number // 2 % 5
        )
    assert site.learn().returncode == 0
    assert {kind: one.mib for kind, one in site.constants.items()} == {"a100": 900, "v100": -200}


@pytest.mark.parametrize("forged", [(40_000, 2000), (1500, 25_000), (8000, 4000)])
@pytest.mark.parametrize("models", ["own", "those of others"])
def test_one_user_who_forges_600_estimates_moves_nobodys_request_by_5_percent(
    tmp_path: Path, forged: Any, models: str
) -> None:
    constants = []
    for poisoned in (False, True):
        (tmp_path / str(poisoned)).mkdir()
        site = Site(tmp_path / str(poisoned))
        draw = random.Random(7)
        for number in range(200):
            est = draw.randint(1500, 30_000)
            took = round((est + 900) * exp(draw.gauss(0, 0.03)))
            site.record(number % 23, est, round(est * 1.25), took, uid=2000 + number % 5)
        if poisoned:
            for number in range(600):
                model = number % 23 if models == "those of others" else 1000 + number
                site.record(model, forged[0], round(forged[0] * 1.02), forged[1], uid=666)
        done = site.learn()
        assert done.returncode == 0, done.stdout + done.stderr
        constants.append(site.constants["a100"].mib)
    honest, moved = constants
    assert abs(moved - honest) < 0.05 * 2000


def test_a_site_of_two_users_is_not_learnt_from(site: Site) -> None:
    for number in range(120):
        site.record(number % 12, 4000, 5000, 4900, uid=number % 2)
    done = site.learn()
    assert done.returncode == 1
    assert "by 2 users" in done.stderr


def test_a_forged_record_does_not_take_the_place_of_another_users_run(site: Site) -> None:
    for number in range(60):
        est = 3000 + 200 * number
        site.record(number % 12, est, round(est * 1.2), est + 900, uid=number % 4, job=number)
    for number in range(60):
        site.record(number % 12, 3000, 3100, 2_000, uid=666, job=number, restarts=9)
    told = json.loads(site.learn("--json", "--dry-run").stdout)
    assert told["gpus"]["a100"]["jobs"] == 120
    assert told["gpus"]["a100"]["mib"] == 900


def test_torn_and_foreign_files_are_counted_and_passed_over(site: Site) -> None:
    fill(site)
    (site.spool / "9001.0.n1.json").write_text("{")
    (site.spool / "9002.0.n1.json").write_text('{"schema": "other/1"}')
    done = site.learn("--dry-run")
    assert done.returncode == 0
    assert "1 torn or no JSON" in done.stdout
    assert "1 no job record" in done.stdout


@pytest.mark.parametrize("beyond", [900, -400])
def test_estimates_have_the_constant_and_a_broken_file_is_a_warning(
    site: Site, monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    plain = estimate(SUMMARY, batch_size=16, gpu="a100", estimator="corrected")
    fill(site, beyond=beyond)
    assert site.learn().returncode == 0
    monkeypatch.setenv("GPUMEM_SITE_CONFIG", str(site.config))
    moved = estimate(SUMMARY, batch_size=16, gpu="a100", estimator="corrected+site")
    constant = site.constants["a100"]
    base = plain.original()
    assert (moved.peak_mib, moved.request_mib) == (base[0] + constant.mib, base[1] + constant.mib)
    assert moved.original()[:2] == base[:2]
    assert moved.estimator == "corrected+site"
    assert sum(moved.parts.values()) == moved.peak_mib
    assert f"as in jobs here: {constant}" in moved.assumptions[-1]
    assert estimate(SUMMARY, batch_size=16, gpu="a100", estimator="corrected").peak_mib == plain.peak_mib
    site.learned.write_text(site.learned.read_text().replace('"mib": ', '"mib": 1e9'))
    broken = estimate(SUMMARY, batch_size=16, gpu="a100", estimator="corrected+site")
    assert (broken.peak_mib, "is not used" in broken.warnings[-1]) == (plain.peak_mib, True)


def test_wrong_options_are_refused(site: Site) -> None:
    assert site.learn("--nonsense").returncode == 2
