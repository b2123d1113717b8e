from __future__ import annotations

from pathlib import Path
from typing import Set, Tuple

import pytest

from slurm_gpumem import Estimate, estimate
from slurm_gpumem.data import data_path
from slurm_gpumem.errors import ConfigError, UsageError
from slurm_gpumem.estimators.environment import (
    Environment,
    _alike,
    environment_of,
    in_environment,
    measured_environments,
    read_environment,
)
from slurm_gpumem.estimators.gpus import closest_gpu, find_gpu, gpu_table
from slurm_gpumem.estimators.registry import run
from slurm_gpumem.estimators.training_job import StatedTraining, training_job
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from tests.support.measured_texts import texts_of

RESNET = Path(__file__).resolve().parents[2] / "docs" / "examples" / "resnet50.txt"
NOWHERE = Path("/nonexistent/gpumem-gpus.toml")


def text(gpu: str, torch: str = "", loading: str = "auto") -> Estimate:
    return estimate(RESNET, batch_size=32, gpu=gpu, torch=torch, module_loading=loading)


BOTH = ("lazy", "eager")


@pytest.mark.parametrize(
    ("torch", "cuda", "loading", "capability", "possible"),
    [
        ("2.6.0", "12.4", "", "8.0", ("lazy",)),
        ("2.11", "", "", "8.0", ("lazy",)),
        # CUDA 11 runs on drivers that cannot load lazily.
        ("2.6.0", "11.8", "", "8.0", BOTH),
        ("2.6.0", "", "", "8.0", BOTH),
        ("1.13.1", "11.7", "", "8.0", BOTH),
        ("1.12.1", "11.3", "", "8.0", ("eager",)),
        ("2.0", "11.6", "", "8.0", ("eager",)),
        ("2.6.0", "", "eager", "8.0", ("eager",)),
        ("", "", "lazy", "8.0", ("lazy",)),
        ("", "12.4", "", "8.0", ("lazy",)),
        ("", "", "", "8.0", BOTH),
        ("", "", "", "", BOTH),
        # No PyTorch and no driver that load eagerly know such GPUs.
        ("", "", "", "9.0", ("lazy",)),
        ("", "", "", "12.0", ("lazy",)),
        ("", "", "eager", "9.0", ("eager",)),
    ],
)
def test_versions_say_how_modules_are_loaded(
    torch: str, cuda: str, loading: str, capability: str, possible: Tuple[str, ...]
) -> None:
    assert Environment(torch, cuda, loading).possible_loading(capability) == possible


def test_an_a100_has_the_context_that_was_seen_in_such_an_environment() -> None:
    gpu = find_gpu("a100", NOWHERE)
    modern = in_environment(gpu, Environment("2.6", "12.4"))
    # Measured was 522 with both libraries; the others differ from it as they do on an H200.
    assert (modern.context_matmul_mib, modern.context_mib) == (500, 522)
    old = in_environment(gpu, Environment("1.12", "11.3"))
    assert (old.context_matmul_mib, old.context_mib) == (1430, 1727)


@pytest.mark.parametrize(
    ("gpu", "measured"),
    [("a10", {"rtx3090"}), ("l40", {"rtx6000ada"}), ("a30", {"a100"}), ("h100", {"h200"}), ("t4", {"v100"})],
)
def test_a_gpu_that_nobody_measured_has_the_context_of_its_architecture(gpu: str, measured: Set[str]) -> None:
    assert {one.gpu for one in _alike(find_gpu(gpu, NOWHERE), measured_environments())} == measured


def test_where_nobody_says_how_modules_are_loaded_the_request_holds_for_both_ways() -> None:
    modern, old, unknown = text("a100", "2.6.0+cu124"), text("a100", "1.12"), text("a100")
    # Both are documented of an A100: the upper median, since too little costs a job more than too much.
    assert modern.peak_mib < old.peak_mib
    assert unknown.parts["context"] == old.parts["context"] == 1727
    assert unknown.request_mib >= old.peak_mib
    assert modern.request_mib < unknown.request_mib - 1000
    said = "left open: the CUDA context on a100, 522 to 1727 MiB elsewhere: 1727 taken (--torch narrows it"
    assert said in " ".join(unknown.assumptions)
    assert "left open: the CUDA context on a100, 522 MiB elsewhere" in " ".join(modern.assumptions)
    # Under the floor it cannot run, whichever way modules are loaded.
    assert unknown.floor_mib <= modern.floor_mib


def test_a_version_that_may_meet_an_old_driver_leaves_open_how_modules_are_loaded() -> None:
    surely, likely, unknown = text("a100", "2.6.0+cu124"), text("a100", "2.6"), text("a100")
    assert (likely.peak_mib, likely.request_mib) == (unknown.peak_mib, unknown.request_mib)
    assert likely.request_mib > surely.request_mib + 1000
    assert text("a100", "2.11").request_mib == surely.request_mib


def test_no_job_is_said_not_to_fit_because_of_a_context_that_nobody_measured() -> None:
    summary = read_summary(RESNET)
    gpu = find_gpu("rtx3060", NOWHERE)
    lazy, unknown = (
        [
            run("corrected", summary, TrainingJob(batch, module_loading=loading), gpu)
            for batch in range(80, 130)
        ]
        for loading in ("lazy", "auto")
    )
    for known, either in zip(lazy, unknown):
        assert (either.peak_mib <= gpu.usable_mib) == (known.peak_mib <= gpu.usable_mib)
        assert sum(either.parts.values()) == either.peak_mib <= either.request_mib
        assert either.floor_mib <= either.peak_mib
    between = [one for one in unknown if one.peak_mib == one.request_mib == gpu.usable_mib]
    assert between
    assert all("does not surely fit" in one.warnings[-1] for one in between)
    peaks = [one.peak_mib for one in unknown]
    assert peaks == sorted(peaks)


def test_a_build_without_cuda_says_nothing_of_the_one_that_runs_the_job() -> None:
    assert environment_of(TrainingJob(1, torch="2.11.0+cpu")) == Environment()
    assert environment_of(TrainingJob(1, torch="2.11.0+cu130")) == Environment("2.11.0", "13.0")
    assert text("a100", "2.11.0+cpu").request_mib == text("a100").request_mib


def test_a_preset_version_goes_before_that_of_a_build_without_cuda_that_traced() -> None:
    trace = read_summary(Path(__file__).resolve().parents[2] / "docs" / "examples" / "train.json")
    assert trace.trace is not None
    presets = StatedTraining(torch="2.6.0+cu124")
    for version, counts in (("2.13.0+cpu", "2.6.0+cu124"), ("2.13.0+cu130", "2.13.0+cu130")):
        traced = trace._replace(trace=trace.trace._replace(job=trace.trace.job._replace(torch=version)))
        assert training_job(traced, StatedTraining(), presets=presets).torch == counts
        assert training_job(traced, StatedTraining(), presets=StatedTraining()).torch == version


@pytest.mark.parametrize("name", ["h200", "v100", "rtx3060", "mystery"])
def test_every_answer_says_what_was_measured_where_and_only_what_is_known_is_narrow(name: str) -> None:
    summary, job = read_summary(RESNET), TrainingJob(batch_size=32)
    gpu = closest_gpu(name, 40_960, NOWHERE)
    made = run("auto", summary, job, gpu)
    said, margin = " ".join(made.assumptions), made.request_mib - made.parts["context"]
    measured = run("auto", summary, job, find_gpu("h200", NOWHERE))
    assert ("left open: the CUDA context" in said) == (name != "h200")
    assert (f"cuDNN workspaces on {name} as measured on an H200" in said) == (name != "h200")
    assert ("is not in the table" in said) == (name == "mystery")
    if name != "h200":
        assert margin > measured.request_mib - measured.parts["context"]
    calibrated = gpu._replace(measured=True, calibrated=True, workspaces_measured=True)
    narrow = run("auto", summary, job, calibrated)
    assert narrow.request_mib - narrow.peak_mib == pytest.approx(
        measured.request_mib - measured.peak_mib, abs=64
    )


@pytest.mark.parametrize("batch", [8, 64])
def test_a_trace_asks_for_what_its_own_workspaces_may_add_where_nobody_measured_them(batch: int) -> None:
    summary, job = read_summary(RESNET), TrainingJob(batch)
    gpu = find_gpu("a100", NOWHERE)._replace(measured=True, calibrated=True)
    known = run("trace", summary, job, gpu._replace(workspaces_measured=True))
    larger = gpu._replace(workspaces_measured=True, workspace_scale=(1.5, 1.5, 1.5))
    unmeasured = run("trace", summary, job, gpu)
    assert (known.margin.workspace_mib, unmeasured.peak_mib) == (0, known.peak_mib)
    assert unmeasured.margin.workspace_mib == run("trace", summary, job, larger).peak_mib - known.peak_mib > 0
    least, own = known.peak_mib * 8 // 100, known.peak_mib * 2 // 100 + unmeasured.margin.workspace_mib
    assert unmeasured.request_mib - known.request_mib == max(least, own)


def test_a_model_that_lives_by_workspaces_asks_for_more_than_any_share_of_its_peak() -> None:
    summary = read_summary(texts_of("torchvision/vgg16@224")["torchinfo_deep"])
    found = run("auto", summary, TrainingJob(64), find_gpu("a100", NOWHERE))
    assert found.estimator == "trace"
    assert found.margin.workspace_mib > found.peak_mib // 5
    assert "cuDNN workspaces on a100 as measured on an H200, the request with " in " ".join(found.assumptions)
    assert found.request_mib - found.parts["context"] > 1.3 * (found.peak_mib - found.parts["context"])


def test_the_measured_gpu_is_as_it_was() -> None:
    plain = text("h200")
    assert text("h200", "2.11") == plain._replace(job=text("h200", "2.11").job)
    assert plain.parts["context"] == 764


def test_eager_loading_is_believed_on_the_measured_gpu_too() -> None:
    assert text("h200", loading="eager").peak_mib > text("h200").peak_mib + 500


def test_what_the_site_calibrated_goes_before_every_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpumem.toml").touch()
    monkeypatch.setenv("GPUMEM_SITE_CONFIG", str(tmp_path / "gpumem.toml"))
    (tmp_path / "gpumem-gpus.toml").write_text("[a100]\ncontext_mib = 555\nmeasured = true\n")
    found = text("a100")
    assert found.parts["context"] == 555
    assert "left open" not in " ".join(found.assumptions)


def test_every_gpu_of_the_table_has_an_answer_in_every_environment() -> None:
    for gpu in gpu_table(NOWHERE).values():
        for environment in (Environment(), Environment("2.6"), Environment("1.8", "11.1")):
            here = in_environment(gpu, environment)
            assert 64 <= (here.context_bare_mib or 0) <= here.context_mib <= 2200, gpu.name
            assert 0 <= here.context_margin_mib <= 1800, gpu.name


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="torch must be PyTorch's version"):
        text("a100", "new")


GOOD = (data_path("models", "environments") / "a100-2025.toml").read_text()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("context_mib = 522", "context_mib = 1", "context_mib must be from 64 to 4096"),
        ("context_mib = 522", "context_mib = 999999999", "context_mib must be from 64 to 4096"),
        ("context_mib = 522", "context_mib = true", "context_mib must be from 64 to 4096"),
        ("context_mib = 522", "", "context_mib must be from 64 to 4096"),
        ('loading = "lazy"', 'loading = "fast"', 'loading must be "lazy" or "eager"'),
        ('gpu = "a100"', "gpu = 7", "gpu must be a short text"),
        ('gpu = "a100"', 'gpu = "\\u001b[2J"', "gpu must be a short text"),
        ('gpu = "a100"', 'gpu = "a100"\nhost = "n1"', "unknown key 'host'"),
        ('gpu = "a100"', f'gpu = "{"a" * 5000}"', "larger than 4096 bytes"),
        ('gpu = "a100"', "gpu = [", "is not valid TOML"),
    ],
)
def test_a_strangers_file_can_do_no_harm(tmp_path: Path, before: str, after: str, message: str) -> None:
    path = tmp_path / "one.toml"
    path.write_text(GOOD.replace(before, after))
    with pytest.raises(ConfigError, match=message):
        read_environment(path)


def test_every_shipped_environment_is_of_a_known_gpu() -> None:
    names = set(gpu_table(NOWHERE))
    assert {entry.gpu for entry in measured_environments()} <= names
