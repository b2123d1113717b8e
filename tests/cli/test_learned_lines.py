"""Memory lines, fits and explanations on GPU types whose context the site has learned."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Dict

import pytest

from slurm_gpumem import estimate
from slurm_gpumem.cli.gpumem import main
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.environment import Environment, in_environment
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.learned import with_learned
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.site.nodes import context_in_table
from slurm_gpumem.submission.script_line import line_for
from slurm_gpumem.summaries.reader import read_summary
from tests.support.learning_site import Site

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
A100 = "NVIDIA A100-SXM4-40GB"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site whose A100s have 522 MiB of context where 1,727 are assumed."""
    made = Site(tmp_path)
    monkeypatch.setenv("GPUMEM_SITE_CONFIG", str(made.config))
    return made


def learn_from_runs(site: Site, by: str, constant: int = -1205) -> None:
    draw = random.Random(4)
    for number in range(15):
        est = draw.randint(3000, 20_000)
        site.record(number % 9, est, round(est * 1.1), est + constant, by=by, uid=number % 3, gpu=A100)
    assert site.learn().returncode == 0


CASES = [
    ("a100", "resnet50"),
    ("a100", "bert"),
    # Types that never ran here: one whose context is not known, one whose context was measured.
    ("v100-32gb", "resnet50"),
    ("h200", "bert"),
]


@pytest.mark.parametrize(("gpu", "model"), CASES)
def test_a_memory_line_asks_for_what_the_estimate_asks_for(site: Site, gpu: str, model: str) -> None:
    learn_from_runs(site, "corrected")
    summary = read_summary((EXAMPLES / f"{model}.txt").read_text())
    line = line_for(summary, TrainingJob(32), "corrected+site")
    kind = find_gpu(gpu)
    here = with_learned(in_environment(kind, Environment()))
    for batch in (16, 32, 100):
        full = registry.run("corrected+site", summary, TrainingJob(batch), kind)
        peak, request = line.memory(batch, here)
        assert peak == pytest.approx(full.peak_mib, rel=0.02)
        assert request == pytest.approx(full.request_mib, rel=0.03)
    # The context is the GPU's own, not part of what the line is made of.
    assert line.context != "none"


def _json(capsys: pytest.CaptureFixture[str], *argv: str) -> Dict[str, Any]:
    main([*argv, "--json"])
    found: Dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json_and_words_say_that_the_context_was_learned(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = str(EXAMPLES / "resnet50.txt")
    argv = ("estimate", summary, "--batch-size", "32", "--gpu", "a100", "--estimator", "corrected+site")
    before = _json(capsys, *argv)
    assert before["measured"]["context"] == "elsewhere"
    assert before["measured"]["context_mib"] == [522, 1727]
    learn_from_runs(site, "corrected")
    after = _json(capsys, *argv)
    assert after["measured"]["context"] == "in jobs here"
    assert after["measured"]["context_mib"] == [522, 522]
    said = " ".join(after["assumptions"])
    assert "left open" not in said
    assert "the CUDA context on A100" in said or "the CUDA context on a100" in said


def test_fit_and_why_use_the_learned_context(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """A PyTorch without CUDA made the trace, so 1,727 MiB were taken; jobs here showed 1,005 MiB less."""
    summary = str(EXAMPLES / "train.json")
    before = _json(capsys, "why", summary, "--gpu", "a100")
    fit_before = _json(capsys, "fit", summary, "--gpu", "a100")
    learn_from_runs(site, "trace", constant=-1005)
    after = _json(capsys, "why", summary, "--gpu", "a100")
    fit_after = _json(capsys, "fit", summary, "--gpu", "a100")
    assert after["peak_mib"] == estimate(summary, gpu="a100").peak_mib
    assert after["peak_mib"] - before["peak_mib"] == pytest.approx(-1005, abs=2)
    assert fit_after["fits"][0]["at"]["peak_mib"] == after["peak_mib"]
    assert fit_before["fits"][0]["at"]["peak_mib"] == before["peak_mib"]


def test_what_one_type_showed_changes_no_other(site: Site) -> None:
    before = estimate(EXAMPLES / "resnet50.txt", batch_size=32, gpu="h200", estimator="corrected")
    learn_from_runs(site, "corrected")
    after = estimate(EXAMPLES / "resnet50.txt", batch_size=32, gpu="h200", estimator="corrected+site")
    assert (after.peak_mib, after.request_mib) == (before.peak_mib, before.request_mib)


def test_the_plug_ins_table_has_what_was_learned_and_both_readers_of_lines_agree(site: Site) -> None:
    assert context_in_table("a100", 40960).learned == ()
    learn_from_runs(site, "trace")
    context = context_in_table("a100", 40960)
    assert context.learned == (("corrected", -1205, 0), ("trace", -1205, 0))
    assert (context.both, context.margin) == (1727, 0)
    assert context_in_table("h200", 143771).learned == ()
