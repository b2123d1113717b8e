"""What a job says of itself: five layers, later wins, errors name the layer."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Optional

import pytest

from slurm_gpumem.config.load import Config, JobDefault
from slurm_gpumem.errors import GpumemError, UsageError
from slurm_gpumem.estimators.training_job import training_job
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.slurm.submit.script import Directive
from slurm_gpumem.submission.job.settings import JobSettings, OwnOptions, job_settings
from slurm_gpumem.summaries.types import Layer, ModelSummary


def settings(
    files: Optional[Dict[str, str]] = None,
    directives: Optional[Dict[str, str]] = None,
    environ: Optional[Dict[str, str]] = None,
    options: Optional[Dict[str, str]] = None,
    script: Optional[str] = "job.sh",
) -> JobSettings:
    config = Config(job={key: JobDefault(value, "site.toml") for key, value in (files or {}).items()})
    lines = [Directive(key, value, 3) for key, value in (directives or {}).items()]
    return job_settings(config, lines, environ or {}, OwnOptions(options or {}), script=script)


def job_of(given: JobSettings, summary_batch: Optional[int]) -> TrainingJob:
    """The job for a summary of that batch size."""
    summary = ModelSummary("torchinfo", (Layer("Linear", params=8),), batch=summary_batch)
    return training_job(summary, given.stated_training(), presets=given.presets())


def test_later_layers_win() -> None:
    layers = [
        {"files": {"batch-size": "1"}},
        {"directives": {"batch-size": "2"}},
        {"environ": {"GPUMEM_BATCH_SIZE": "3"}},
        {"options": {"batch-size": "4"}},
    ]
    given: Dict[str, Dict[str, str]] = {}
    for expected, layer in enumerate(layers, start=1):
        given.update(layer)
        assert job_of(settings(**given), None).batch_size == expected  # type: ignore[arg-type]


def test_the_summarys_batch_is_taken_when_nobody_says_one() -> None:
    assert job_of(settings(), 64).batch_size == 64


def test_no_batch_size_anywhere_is_an_error_that_tells_both_ways_to_give_one() -> None:
    with pytest.raises(UsageError, match=r"(?s)no batch size.*--batch-size 128 or #GPUMEM batch-size=128"):
        job_of(settings(), None)


@pytest.mark.parametrize("value", ["0", "-3"])
def test_a_batch_size_below_one_is_refused_and_its_place_named(value: str) -> None:
    with pytest.raises(UsageError, match=rf"job\.sh, line 3: batch-size must be at least 1, not {value}"):
        job_of(settings(directives={"batch-size": value}), None)


def test_a_batch_size_that_is_no_number_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--batch-size: batch-size must be a whole number, not '1e3'"):
        job_of(settings(options={"batch-size": "1e3"}), None)


@pytest.mark.parametrize(
    ("key", "value", "near"),
    [
        ("optimizer", "admaw", "adamw"),
        ("precision", "fp23", "fp32"),
        ("loss", "cross-entropie", "cross-entropy"),
    ],
)
def test_an_unknown_name_comes_with_the_nearest(key: str, value: str, near: str) -> None:
    with pytest.raises(GpumemError, match=f"did you mean '{near}'"):
        job_of(settings(options={key: value}), 8)


def test_names_may_be_written_as_pytorch_writes_them() -> None:
    job = job_of(settings(options={"optimizer": "AdamW", "precision": "AMP_bf16"}), 8)
    assert (job.optimizer, job.precision) == ("adamw", "amp-bf16")


@pytest.mark.parametrize(
    ("key", "given", "ours"),
    [
        ("precision", "bf16-mixed", "amp-bf16"),
        ("precision", "16-mixed", "amp-fp16"),
        ("precision", "fp16", "amp-fp16"),
        ("precision", "bf16-true", "bf16"),
        ("precision", "32-true", "fp32"),
        ("optimizer", "adamw_torch", "adamw"),
        ("optimizer", "adamw_torch_fused", "adamw"),
        ("optimizer", "paged_adamw_8bit", "adamw"),
    ],
)
def test_names_of_frameworks_stand_for_ours(key: str, given: str, ours: str) -> None:
    assert getattr(job_of(settings(options={key: given}), 8), key) == ours


def test_an_optimizer_that_is_estimated_as_a_larger_one_says_so() -> None:
    assert settings(options={"optimizer": "adamw_8bit"}).remarks() == (
        "adamw_8bit is estimated as adamw with states of full size on the GPU, which is an upper bound",
    )
    assert settings(options={"optimizer": "adamw_torch"}).remarks() == ()


@pytest.mark.parametrize("name", ["muon", "adan"])
def test_an_optimizer_without_a_rule_is_refused_and_not_taken_for_another(name: str) -> None:
    with pytest.raises(
        UsageError, match=rf"no rule for the memory of the optimizer '{name}'.*\n.*gpumem trace"
    ):
        job_of(settings(options={"optimizer": name}), 8)


def test_memory_by_hand_replaces_an_earlier_model_and_a_later_model_replaces_it() -> None:
    by_hand = settings(directives={"model": "m.txt"}, options={"mem": "12G"})
    assert (by_hand.model, by_hand.mem_mib) == (None, 12 * 1024)
    by_model = settings(directives={"mem": "12G"}, options={"model": "m.txt"})
    assert (by_model.model, by_model.mem_mib) == ("m.txt", None)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("lots", "--gpu-mem: 'lots' is not a memory size"),
        ("0G", "--gpu-mem: GPU memory must be more"),
        ("6", r"--gpu-mem: '6' has no unit; did you mean 6G\?"),
    ],
)
def test_memory_that_is_no_size_is_refused(value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings(options={"mem": value}).mem_mib  # noqa: B018


def test_switches_are_yes_or_no() -> None:
    assert job_of(settings(directives={"checkpointing": "yes"}), 8).checkpointing
    assert not job_of(settings(directives={"checkpointing": "no"}), 8).checkpointing
    with pytest.raises(UsageError, match=r"job\.sh, line 3: exclusive-gpu must be yes or no, not 'maybe'"):
        settings(directives={"exclusive-gpu": "maybe"}).exclusive_gpu  # noqa: B018


def test_consent_to_requeue_is_one_of_two_words() -> None:
    assert settings().on_oom == "requeue"
    assert settings(directives={"on-oom": "fail"}).on_oom == "fail"
    with pytest.raises(UsageError, match="did you mean 'requeue'"):
        settings(options={"on-oom": "requeu"}).on_oom  # noqa: B018


def test_a_directives_path_is_found_beside_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.txt").write_text("x")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    said = settings(directives={"model": "m.txt"}, script=str(tmp_path / "job.sh"))
    assert said.model == str(tmp_path / "m.txt")
    (here / "m.txt").write_text("x")
    assert settings(directives={"model": "m.txt"}, script=str(tmp_path / "job.sh")).model == "m.txt"
    assert settings(options={"model": "../x.txt"}, script=str(tmp_path / "job.sh")).model == "../x.txt"


def test_home_is_replaced_in_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for written in ("~/m.txt", "$HOME/m.txt", "${HOME}/m.txt"):
        assert settings(directives={"model": written}).model == str(tmp_path / "m.txt")
        assert settings(options={"model": written}).model == str(tmp_path / "m.txt")


def test_a_file_that_is_called_like_a_variable_is_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOT_SET", raising=False)
    with pytest.raises(UsageError, match="the variable NOT_SET is not set here"):
        _ = settings(directives={"model": "${NOT_SET}/m.txt"}).model
    (tmp_path / "$HOME.txt").write_text("x")
    assert settings(directives={"model": "$HOME.txt"}).model == "$HOME.txt"


def test_a_size_beside_a_model_says_that_the_size_counts() -> None:
    both = settings(directives={"mem": "12G", "model": "m.txt"})
    assert both.mem_mib == 12 * 1024
    assert both.contradiction() == (
        "job.sh, line 3: 12G of GPU memory is asked for as given by hand; the model (job.sh, line 3) is not "
        "estimated. Remove one of the two"
    )
    assert settings(directives={"model": "m.txt"}, options={"mem": "12G"}).contradiction() is None
