"""What `gpumem learn` makes of CUDA contexts: unknown, learned from runs, and reported by jobs' own logs."""

from __future__ import annotations

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
