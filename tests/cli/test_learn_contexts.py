"""What `gpumem learn` makes of CUDA contexts: unknown, learned from runs, and reported by jobs' own logs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from statistics import median
from typing import Any, Dict

import pytest

from slurm_gpumem import Estimate, estimate
from tests.support.learning_site import Site

SUMMARY = Path(__file__).resolve().parents[2] / "docs" / "examples" / "resnet50.txt"
A100, V100 = "NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-32GB"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path)
    monkeypatch.setenv("GPUMEM_SITE_CONFIG", str(made.config))
    return made


def text(gpu: str = "a100", **more: Any) -> Estimate:
    return estimate(SUMMARY, batch_size=32, gpu=gpu, estimator="corrected+site", **more)


def run_on_a_lazy_a100(site: Site, jobs: int = 15, by: str = "corrected") -> None:
    """Jobs of five models by three users whose estimates had 1,727 MiB of context where 522 was true."""
    draw = random.Random(2)
    for number in range(jobs):
        est = draw.randint(3000, 20_000)
        site.record(number % 5, est, round(est * 1.1), est - 1205, by=by, uid=number % 3, gpu=A100)


def test_a_learned_constant_takes_the_place_of_the_margin_for_the_context(site: Site) -> None:
    before = text(torch="2.6")
    run_on_a_lazy_a100(site)
    assert site.learn().returncode == 0
    learned = {torch: text(torch=torch) for torch in ("", "2.6", "2.6.0+cu124")}
    # Whatever each job says of its PyTorch, the site has seen what the context is.
    assert {one.parts["context"] for one in learned.values()} == {522}
    assert len({one.request_mib for one in learned.values()}) == 1
    assert learned[""].request_mib < before.request_mib - 1000
    assert learned["2.6"].base == learned[""].base


def test_a_type_that_never_ran_here_keeps_its_margin(site: Site) -> None:
    before = text("v100-32gb", torch="2.6")
    run_on_a_lazy_a100(site)
    assert site.learn().returncode == 0
    after = text("v100-32gb", torch="2.6")
    assert before.request_mib - before.peak_mib == pytest.approx(after.request_mib - after.peak_mib, rel=0.2)


def test_a_job_that_loads_eagerly_is_not_lowered_by_those_that_do_not(site: Site) -> None:
    before = text(module_loading="eager")
    run_on_a_lazy_a100(site)
    assert site.learn().returncode == 0
    assert text(module_loading="eager").request_mib >= before.request_mib


def test_what_jobs_said_of_their_pytorch_does_not_confuse_the_constant(site: Site) -> None:
    draw = random.Random(3)
    for number in range(24):
        tensors = draw.randint(3000, 20_000)
        # Every other job named its PyTorch, and its estimate had the lazy context.
        known = number % 2 == 0
        est, base = tensors + (522 if known else 1727), tensors + 1727
        more: Dict[str, Any] = {"base": f"{base}+{round(base * 1.1)}"} if known else {}
        site.record(
            number % 6, est, round(est * 1.1), tensors + 522, uid=1000 + number // 2 % 4, gpu=A100, **more
        )
    assert site.learn().returncode == 0
    assert site.constants["a100"].mib == pytest.approx(-1205, abs=1)


def report(site: Site, uid: int, context: int, gpu: str = A100, **more: Any) -> None:
    """A job that ran out of memory, whose log said what it held outside PyTorch's allocator."""
    parts = {"parts": "100+100+200+3000+100+100+1727", **more}
    site.record(7, 5327, 6000, 6000, state="OOM", uid=uid, gpu=gpu, context=context, **parts)


def test_three_users_reports_of_their_context_count_for_a_type_without_runs(site: Site) -> None:
    for uid, context in ((1, 520), (2, 530), (3, 522)):
        report(site, uid, context)
    done = site.learn()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a100: -1,205 MiB (3 jobs of 3 users, half of them within 2 MiB)" in done.stdout
    assert list(site.constants) == ["a100"]
    assert text().parts["context"] == 522
    # The same again is nothing new.
    assert site.learn().returncode == 1


def test_two_users_reports_count_for_nobody_however_many_they_are(site: Site) -> None:
    for number in range(100):
        report(site, number % 2, 522)
    assert site.learn().returncode == 1
    assert not site.learned.exists()


def test_a_report_of_one_liar_moves_nobody_and_what_cannot_be_true_is_left_out(site: Site) -> None:
    for uid, context in ((1, 520), (2, 530), (3, 522)):
        report(site, uid, context)
    for number in range(300):
        report(site, 666, 4000 if number % 2 else 64)
        # More than the whole process had, more than any context, less than any; words that are no sizes.
        report(site, 700 + number, 7000)
        report(site, 1700 + number, 63)
        report(site, 2700 + number, 522, parts="1+2")
        report(site, 3700 + number, 522, parts="x" * 500)
    done = site.learn("--json")
    (constant,) = json.loads(done.stdout)["gpus"].values()
    assert (constant["mib"], constant["users"]) == (pytest.approx(-1205, abs=10), 4)


def reserved(site: Site, uid: int, reserved_mib: int, took: int = 5000, **more: Any) -> None:
    """A job that ended well, whose process reported what PyTorch had reserved of what the node measured."""
    parts = {"parts": "100+100+200+3000+100+100+1727", **more}
    site.record(7, 5327, 6000, took, uid=uid, reserved=reserved_mib, **parts)


def test_three_users_whose_jobs_ended_well_teach_the_context_too(site: Site) -> None:
    for uid, context in ((1, 520), (2, 530), (3, 522)):
        reserved(site, uid, 5000 - context)
    done = site.learn()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a100: -1,205 MiB (3 jobs of 3 users, half of them within 2 MiB)" in done.stdout
    assert text().parts["context"] == 522


def test_two_users_whose_jobs_ended_well_count_for_nobody_however_many_they_are(site: Site) -> None:
    for number in range(100):
        reserved(site, number % 2, 4478)
    assert site.learn().returncode == 1
    assert not site.learned.exists()


@pytest.mark.parametrize("forged", [5000 - 64, 5000 - 4000, 4478 - 700, 4999, 1, 90_000, 0])
def test_600_forged_reports_of_one_user_move_no_request_by_5_percent(site: Site, forged: int) -> None:
    for uid, context in ((1, 520), (2, 530), (3, 522), (4, 518)):
        reserved(site, uid, 5000 - context)
    assert site.learn().returncode == 0
    before = {batch: _request(batch) for batch in (1, 32, 256)}
    for _ in range(600):
        reserved(site, 666, forged)
    site.learn()
    for batch, request in before.items():
        assert _request(batch) == pytest.approx(request, rel=0.05)


def _request(batch: int) -> int:
    return estimate(SUMMARY, batch_size=batch, gpu="a100", estimator="corrected+site").request_mib


@pytest.mark.parametrize("more", [{"loading": "eager"}, {"samples": 1}, {"parts": "1+2"}, {"took": 4400}])
def test_jobs_that_load_eagerly_or_were_hardly_measured_teach_nobody(
    site: Site, more: Dict[str, Any]
) -> None:
    for uid in (1, 2, 3):
        reserved(site, uid, 4478, **more)
    assert site.learn().returncode == 1


def test_what_root_calibrated_goes_before_every_report(site: Site) -> None:
    entry = '["nvidia a100-sxm4-40gb"]\nmemory_mib = 40960\ncontext_mib = 600\nmeasured = true\n'
    (site.config.parent / "gpumem-gpus.toml").write_text(entry.replace("nvidia a100-sxm4-40gb", "a100"))
    for uid in (1, 2, 3):
        report(site, uid, 522)
    assert site.learn().returncode == 1
    assert text().parts["context"] == 600


def test_runs_go_before_reports(site: Site) -> None:
    run_on_a_lazy_a100(site)
    for uid in (1, 2, 3):
        report(site, uid, 1900)
    assert site.learn().returncode == 0
    assert site.constants["a100"].mib == pytest.approx(-1205, abs=60)


@pytest.mark.parametrize(("by", "spread", "most"), [("corrected", 0.031, 0.04), ("trace", 0.017, 0.025)])
def test_five_models_bring_a_site_with_another_context_to_the_scatter_of_its_estimates(
    site: Site, by: str, spread: float, most: float
) -> None:
    draw = random.Random(5)

    def job() -> Any:
        tensors = round(2 ** draw.uniform(11, 14.5))
        return tensors + 1727, round((tensors + 522) * draw.gauss(1, spread * 1.48))

    for number in range(15):
        est, took = job()
        site.record(number % 5, est, round(est * 1.1), took, by=by, uid=number % 3, gpu=A100)
    assert site.learn().returncode == 0
    constant = site.constants["a100"].mib
    others = [job() for _ in range(400)]
    raw = median(abs(est / took - 1) for est, took in others)
    left = median(abs((est + constant) / took - 1) for est, took in others)
    assert raw > 0.12
    assert left < most
