"""`gpumem learn` on folders of job records as nodes write them, through the real command."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from math import exp
from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem import estimate
from slurm_gpumem.estimators.site_layer import load_layer

GPUMEM = str(Path(sys.executable).with_name("gpumem"))
SUMMARY = Path(__file__).resolve().parents[2] / "docs" / "examples" / "resnet50.txt"


class Site:
    """A site with a gpumem.toml, a spool of records, and the command at hand."""

    def __init__(self, folder: Path) -> None:
        self.spool = folder / "spool"
        self.spool.mkdir()
        self.config = folder / "gpumem.toml"
        self.config.write_text(f'[node]\nspool = "{self.spool}"\n')
        self.learned = folder / "gpumem-learned.json"
        self._jobs = 0

    def learn(self, *argv: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "GPUMEM_SITE_CONFIG": str(self.config), "HOME": str(self.spool.parent)}
        return subprocess.run(
            [GPUMEM, "learn", *argv], env=env, capture_output=True, text=True, timeout=60, check=False
        )

    def record(self, model: int, est: int, req: int, took: int, **more: Any) -> None:
        """One job of a model: estimated, asked for, took; `state` "OOM" for one that its limit ended."""
        self._jobs += 1
        state = more.get("state", "COMPLETED")
        limit = more.get("limit", -(-req // 1024) * 1024)
        oom = state == "OOM"
        claim = {"est": str(est), "req": str(req), "by": more.get("by", "corrected"), "batch": "32"}
        claim.update({"fp": f"{model:016x}", "opt": "adam", "prec": "fp32", "shards": str(limit // 1024)})
        claim.update({"base": more["base"]} if "base" in more else {})
        uuid = f"GPU-{model:08x}"
        table = {
            "schema": "gpumem-job/2",
            "job_id": more.get("job", self._jobs),
            "restarts": more.get("restarts", 0),
            "cluster": "site",
            "partition": "gpu",
            "node": "n1",
            "user": "u",
            "uid": more.get("uid", 1000 + self._jobs % 7),
            "mode": "mps",
            "gpus": [uuid],
            "claim": "gpumem/1:" + ",".join(f"{key}={value}" for key, value in claim.items()),
            "shards": limit // 1024,
            "limit_mib": limit,
            "start": 1000.0 + self._jobs,
            "end": 5000.0 + self._jobs,
            "exit_code": 1 if state in ("OOM", "FAILED") else 0,
            "signal": 0,
            "state": None if oom else state,
            "peak_mib": limit if oom else took,
            "gpu": {uuid: {"name": more.get("gpu", "NVIDIA A100-SXM4-40GB"), "peak_mib": took}},
            "samples": more.get("samples", 60),
            "hints": ["near-limit"] if oom else [],
            "notes": [],
            "events": [],
            "met": [],
        }
        name = f"{table['job_id']}.{table['restarts']}.n1.json"
        (self.spool / name).write_text(json.dumps(table))

    def fill(self, jobs: int, models: int, ratio: float, noise: float, seed: int = 1, **more: Any) -> None:
        """Jobs that took `ratio` of their estimate, give or take `noise`; some end at their limit."""
        draw = random.Random(seed)
        own = {model: ratio * exp(draw.gauss(0, noise)) for model in range(models)}
        for _ in range(jobs):
            model = draw.randrange(models)
            est = draw.randint(1500, 30_000)
            req = round(est * more.get("margin", 1.3))
            took = round(est * own[model] * exp(draw.gauss(0, noise / 4)))
            limit = -(-req // 1024) * 1024
            self.record(model, est, req, took, **({"state": "OOM"} if took > limit else {}))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_too_little_data_is_refused_and_said(site: Site) -> None:
    site.fill(30, 4, 1.0, 0.05)
    site.record(1, 2000, 3000, 2500, by="mem")
    done = site.learn()
    assert done.returncode == 1
    assert "30 finished runs of 4 models are too little" in done.stderr
    assert "1 not estimated by corrected" in done.stdout
    assert not site.learned.exists()


def test_no_records_at_all_is_the_same_answer(site: Site) -> None:
    done = site.learn()
    assert (done.returncode, "0 finished runs" in done.stderr) == (1, True)


def test_a_site_whose_jobs_take_less_than_estimated_asks_for_less(site: Site) -> None:
    site.fill(400, 40, 0.8, 0.05)
    done = site.learn()
    assert done.returncode == 0, done.stderr
    layer = load_layer(str(site.learned))
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
    assert told["in_force"]["above_request"] > 0.5
    assert told["learned"]["above_request"] < 0.08
    assert told["layer"]["offset"] > 0.1


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
        site.record(job % 10, 4000, 4096, 0, state="OOM", job=job)
        site.record(job % 10, 4000, 4096, 5000, job=job, restarts=1, limit=40960)
    done = site.learn("--json", "--dry-run")
    told = json.loads(done.stdout)
    assert told["in_force"]["runs"] == 200
    assert told["layer"]["card"]["records"] == 300


def test_records_that_an_earlier_layer_moved_are_read_as_they_were_before(site: Site) -> None:
    draw = random.Random(3)
    for number in range(100):
        est = draw.randint(2000, 20_000)
        base = f"{est}+{round(est * 1.3)}"
        site.record(
            number % 10, round(est * 0.9), round(est), round(est * 0.9), by="corrected+site", base=base
        )
    layer = json.loads(site.learn("--json", "--dry-run").stdout)["layer"]
    assert layer["offset"] == pytest.approx(-0.105, abs=0.01)


def test_one_user_alone_cannot_lower_what_a_model_asks_for(site: Site) -> None:
    site.fill(200, 20, 1.0, 0.02, margin=1.5)
    for uid, model in ((1, 500), (2, 501)):
        for _ in range(5):
            site.record(model, 20_000, 30_000, 8000, uid=uid)
    for uid in range(5):
        site.record(502, 20_000, 30_000, 8000, uid=uid)
    models = json.loads(site.learn("--json", "--dry-run").stdout)["layer"]["models"]
    assert models[f"{500:016x}"] == models[f"{501:016x}"] == 0.0
    assert models[f"{502:016x}"] == -0.3


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
    plain = estimate(SUMMARY, batch_size=16, gpu="a100")
    site.fill(200, 20, 0.8, 0.05)
    assert site.learn().returncode == 0
    monkeypatch.setenv("GPUMEM_SITE_CONFIG", str(site.config))
    moved = estimate(SUMMARY, batch_size=16, gpu="a100")
    layer = load_layer(str(site.learned))
    assert moved.peak_mib == pytest.approx(plain.peak_mib * exp(layer.offset), abs=2)
    assert moved.base == (plain.peak_mib, plain.request_mib)
    assert moved.estimator == "corrected+site"
    assert sum(moved.parts.values()) == moved.peak_mib
    assert estimate(SUMMARY, batch_size=16, gpu="a100", estimator="corrected").peak_mib == plain.peak_mib
    site.learned.write_text(site.learned.read_text().replace('"offset": ', '"offset": 1e9'))
    broken = estimate(SUMMARY, batch_size=16, gpu="a100")
    assert (broken.peak_mib, "is not used" in broken.warnings[-1]) == (plain.peak_mib, True)
    assert site.learn().returncode == 2


@pytest.mark.parametrize("argv", [("--coverage", "2"), ("--coverage", "x"), ("--nonsense",)])
def test_wrong_options_are_told(site: Site, argv: Any) -> None:
    assert site.learn(*argv).returncode == 2
