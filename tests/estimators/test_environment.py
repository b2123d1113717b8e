from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem import Estimate, estimate
from slurm_gpumem.data import data_path
from slurm_gpumem.errors import ConfigError, UsageError
from slurm_gpumem.estimators.environment import (
    Environment,
    in_environment,
    measured_environments,
    read_environment,
)
from slurm_gpumem.estimators.gpus import find_gpu, gpu_table

RESNET = Path(__file__).resolve().parents[2] / "docs" / "examples" / "resnet50.txt"
NOWHERE = Path("/nonexistent/gpumem-gpus.toml")


def text(gpu: str, torch: str = "", loading: str = "auto") -> Estimate:
    return estimate(RESNET, batch_size=32, gpu=gpu, torch=torch, module_loading=loading)


@pytest.mark.parametrize(
    ("torch", "cuda", "loading", "answer"),
    [
        ("2.6.0", "12.4", "", "lazy"),
        ("1.13.1", "11.7", "", "lazy"),
        ("1.12.1", "11.3", "", "eager"),
        ("2.0", "11.6", "", "eager"),
        ("2.6.0", "", "eager", "eager"),
        ("", "12.4", "", ""),
        ("", "", "", ""),
    ],
)
def test_versions_say_how_modules_are_loaded(torch: str, cuda: str, loading: str, answer: str) -> None:
    assert Environment(torch, cuda, loading).module_loading == answer


def test_an_a100_has_the_context_that_was_seen_in_such_an_environment() -> None:
    gpu = find_gpu("a100", NOWHERE)
    modern = in_environment(gpu, Environment("2.6", "12.4"))
    # Measured was 522 with both libraries; the others differ from it as they do on an H200.
    assert (modern.context_matmul_mib, modern.context_mib) == (500, 522)
    old = in_environment(gpu, Environment("1.12", "11.3"))
    assert (old.context_matmul_mib, old.context_mib) == (1430, 1727)


def test_where_nobody_says_how_modules_are_loaded_the_request_holds_for_both_ways() -> None:
    modern, old, unknown = text("a100", "2.6"), text("a100", "1.12"), text("a100")
    assert unknown.peak_mib == modern.peak_mib < old.peak_mib
    assert unknown.request_mib >= old.peak_mib
    assert modern.request_mib < unknown.request_mib
    assert "the CUDA context on a100 was not measured here: 522 to 1727 MiB elsewhere" in " ".join(
        unknown.assumptions
    )


def test_the_measured_gpu_is_as_it_was() -> None:
    plain = text("h200")
    assert text("h200", "2.11") == plain.__class__(**{**vars(plain), "job": text("h200", "2.11").job})
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
    assert "was not measured" not in " ".join(found.assumptions)


def test_every_gpu_of_the_table_has_an_answer_in_every_environment() -> None:
    for gpu in gpu_table(NOWHERE).values():
        for environment in (Environment(), Environment("2.6"), Environment("1.8", "11.1")):
            here = in_environment(gpu, environment)
            assert 64 <= (here.context_bare_mib or 0) <= here.context_mib <= 2200, gpu.name
            assert 0 <= here.context_doubt_mib <= 1800, gpu.name


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
