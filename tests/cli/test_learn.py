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


def test_too_little_data_is_refused_and_said(site: Site) -> None:
    site.fill(30, 4, 1.0, 0.05)
    site.record(1, 2000, 3000, 2500, by="mem")
    done = site.learn()
    assert done.returncode == 1
    assert "corrected: 30 finished runs of 4 models by 7 users are too little" in done.stderr
    assert "1 not estimated by corrected or trace" in done.stdout
    assert not site.learned.exists()


def test_a_folder_that_is_not_there_is_refused(site: Site) -> None:
    done = site.learn("--records", "/nonexistent")
    assert (done.returncode, "/nonexistent: is no folder" in done.stderr) == (2, True)


def test_no_records_at_all_is_the_same_answer(site: Site) -> None:
    done = site.learn()
    assert (done.returncode, "0 finished runs" in done.stderr) == (1, True)


def test_a_site_whose_jobs_take_less_than_estimated_asks_for_less(site: Site) -> None:
    site.fill(400, 40, 0.8, 0.05)
    done = site.learn()
    assert done.returncode == 0, done.stderr
    layer = site.layer()
    assert layer.offset == pytest.approx(-0.223, abs=0.04)
    assert layer.quantile < 0.7
    assert layer.card["held_out"]["above_request"] <= 0.03
    assert layer.card["held_out"]["in_vain"] < layer.card["before"]["in_vain"] / 2
    assert "in force" in done.stdout
    assert "gpumem-learned.json written" in done.stderr


def test_a_site_whose_jobs_run_out_of_memory_asks_for_more(site: Site) -> None:
    site.fill(400, 40, 1.25, 0.1, margin=1.15)
    done = site.learn("--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    # Most runs above the request ended at their limit: nobody saw how much they needed.
    text = told["estimators"]["corrected"]
    assert text["in_force"]["above_request"] > 0.5
    assert text["learned"]["above_request"] < 0.08
    assert site.layer().move(10_000, 11_500, "a100", "")[0] > 11_000


def test_estimates_that_are_good_already_are_left_alone(site: Site) -> None:
    site.fill(150, 12, 1.0, 0.08, margin=1.2)
    site.learn()
    before = site.learned.read_bytes() if site.learned.exists() else None
    done = site.learn()
    assert done.returncode == 1
    assert "not better than what is in force" in done.stderr
    assert (site.learned.read_bytes() if site.learned.exists() else None) == before


def test_the_layer_before_is_kept(site: Site) -> None:
    site.fill(200, 20, 0.8, 0.05)
    assert site.learn().returncode == 0
    first = site.learned.read_text()
    for record in site.spool.iterdir():
        record.unlink()
    site.fill(400, 30, 0.5, 0.05, seed=2)
    done = site.learn()
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path(f"{site.learned}.1").read_text() == first
    assert site.learned.read_text() != first


def test_a_dry_run_writes_nothing(site: Site) -> None:
    site.fill(200, 20, 0.8, 0.05)
    done = site.learn("--dry-run")
    assert done.returncode == 0
    assert "was not written" in done.stderr
    assert not site.learned.exists()


def test_a_retried_job_counts_once_by_the_run_that_finished(site: Site) -> None:
    site.fill(100, 10, 1.0, 0.02)
    for job in range(1000, 1100):
        site.record(job % 10, 4000, 4096, 0, state="OOM", job=job, uid=job)
        site.record(job % 10, 4000, 4096, 5000, job=job, uid=job, restarts=1, limit=40960)
    done = site.learn("--json", "--dry-run")
    told = json.loads(done.stdout)
    text = told["estimators"]["corrected"]
    assert text["in_force"]["runs"] == 200
    assert text["layer"]["card"]["records"] == 300


def test_records_that_an_earlier_layer_moved_are_read_as_they_were_before(site: Site) -> None:
    draw = random.Random(3)
    for number in range(100):
        est = draw.randint(2000, 20_000)
        base = f"{est}+{round(est * 1.3)}"
        site.record(
            number % 10, round(est * 0.9), round(est), round(est * 0.9), by="corrected+site", base=base
        )
    done = site.learn("--json", "--dry-run")
    layer = json.loads(done.stdout)["estimators"]["corrected"]["layer"]
    assert layer["offset"] == pytest.approx(-0.105, abs=0.01)


def test_a_term_for_a_model_needs_three_users(site: Site) -> None:
    site.fill(200, 20, 1.0, 0.02, margin=1.5)
    for model, users in ((500, 1), (501, 2), (502, 5)):
        for number in range(6):
            site.record(model, 20_000, 30_000, 8000, uid=number % users)
    done = site.learn("--json", "--dry-run")
    models = json.loads(done.stdout)["estimators"]["corrected"]["layer"]["models"]
    assert f"{500:016x}" not in models
    assert f"{501:016x}" not in models
    assert models[f"{502:016x}"] == -0.3


def test_five_models_of_three_users_teach_a_constant_for_texts_and_for_traces(site: Site) -> None:
    draw = random.Random(4)
    for by in ("corrected", "trace"):
        for number in range(15):
            est = draw.randint(2000, 20_000)
            site.record(number % 5, est, round(est * 1.1), est + 900, by=by, uid=number % 3)
    done = site.learn()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "written for corrected and trace" in done.stderr
    for by in ("corrected", "trace"):
        layer = site.layer(by)
        assert (layer.constant, layer.offset, layer.models) == (900, 0, {})
        assert layer.move(4000, 4400, "a100", "") == pytest.approx((4900, 4900 * 1.1))


def test_each_type_of_gpu_with_enough_jobs_has_a_constant_of_its_own(site: Site) -> None:
    for number in range(120):
        gpu, beyond = (("NVIDIA A100-SXM4-40GB", 900), ("Tesla V100-SXM2-32GB", -200))[number % 2]
        est = 3000 + 85 * number
        site.record(
            number // 2 % 12, est, round(est * 1.2), est + beyond, gpu=gpu, uid=1000 + number // 2 % 5
        )
    assert site.learn().returncode == 0
    layer = site.layer()
    assert layer.move(8000, 9000, "a100", "")[0] == pytest.approx(8900, abs=200)
    assert layer.move(8000, 9000, "v100", "")[0] == pytest.approx(7800, abs=300)


@pytest.mark.parametrize("forged", [(40_000, 2000), (1500, 25_000), (8000, 4000)])
@pytest.mark.parametrize("models", ["own", "those of others"])
def test_one_user_who_forges_600_estimates_moves_nobodys_request_by_5_percent(
    tmp_path: Path, forged: Any, models: str
) -> None:
    layers = []
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
        layers.append(site.layer())
    for peak in (2000, 5000, 12_000, 40_000):
        for fingerprint in ("new", f"{3:016x}"):
            honest, moved = (layer.move(peak, peak * 1.2, "a100", fingerprint) for layer in layers)
            assert moved == pytest.approx(honest, rel=0.05)


def test_a_site_of_two_users_is_not_learnt_from(site: Site) -> None:
    for number in range(120):
        site.record(number % 12, 4000, 5000, 4900, uid=number % 2)
    done = site.learn()
    assert done.returncode == 1
    assert "by 2 users are too little" in done.stderr


def test_a_forged_record_does_not_take_the_place_of_another_users_run(site: Site) -> None:
    for number in range(60):
        est = 3000 + 200 * number
        site.record(number % 12, est, round(est * 1.2), est + 900, uid=number % 4, job=number)
    for number in range(60):
        site.record(number % 12, 3000, 3100, 2_000, uid=666, job=number, restarts=9)
    done = site.learn("--json", "--dry-run")
    text = json.loads(done.stdout)["estimators"]["corrected"]
    assert text["in_force"]["runs"] == 120
    assert text["layer"]["constant"] == pytest.approx(900, abs=1)


def test_torn_and_foreign_files_are_counted_and_passed_over(site: Site) -> None:
    site.fill(120, 12, 0.7, 0.05)
    (site.spool / "9001.0.n1.json").write_text("{")
    (site.spool / "9002.0.n1.json").write_text('{"schema": "other/1"}')
    done = site.learn("--dry-run")
    assert done.returncode == 0
    assert "1 torn or no JSON" in done.stdout
    assert "1 no job record" in done.stdout


def test_estimates_follow_the_layer_and_a_broken_one_is_a_warning(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = estimate(SUMMARY, batch_size=16, gpu="a100", estimator="corrected")
    site.fill(200, 20, 0.8, 0.05)
    assert site.learn().returncode == 0
    monkeypatch.setenv("GPUMEM_SITE_CONFIG", str(site.config))
    moved = estimate(SUMMARY, batch_size=16, gpu="a100", estimator="corrected+site")
    layer = site.layer()
    wanted = layer.move(plain.peak_mib, plain.request_mib, "a100", "")[0]
    assert moved.peak_mib == pytest.approx(wanted, abs=2)
    assert moved.base == (plain.peak_mib, plain.request_mib)
    assert moved.estimator == "corrected+site"
    assert sum(moved.parts.values()) == moved.peak_mib
    assert estimate(SUMMARY, batch_size=16, gpu="a100", estimator="corrected").peak_mib == plain.peak_mib
    site.learned.write_text(site.learned.read_text().replace('"offset": ', '"offset": 1e9'))
    broken = estimate(SUMMARY, batch_size=16, gpu="a100", estimator="corrected+site")
    assert (broken.peak_mib, "is not used" in broken.warnings[-1]) == (plain.peak_mib, True)
    assert site.learn().returncode == 2


@pytest.mark.parametrize("argv", [("--coverage", "2"), ("--coverage", "x"), ("--nonsense",)])
def test_wrong_options_are_refused(site: Site, argv: Any) -> None:
    assert site.learn(*argv).returncode == 2
