from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.training_job import StatedTraining, describe_job, training_job
from slurm_gpumem.estimators.types import OPTIMIZERS, PRECISIONS, Estimate, Gpu, TrainingJob
from slurm_gpumem.report.estimate import assumptions, input_dtype
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import Layer, ModelSummary
from tests.estimators.explain.small_trace import BATCH, small_summary

CNN = ModelSummary("torchsummary", (Layer("Conv2d", outputs=((-1, 8, 4, 4),), params=224),))
TEXT = ModelSummary("torchinfo", (Layer("Embedding", outputs=((4, 16, 8),), params=800),), batch=4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 0}, "batch size must be at least 1, not 0"),
        ({"batch_size": "8"}, "batch size must be a whole number, not '8'"),
        ({"batch_size": 4.5}, "batch size must be a whole number, not 4.5"),
        ({"batch_size": -4}, "batch size must be at least 1"),
        ({"batch_size": 1, "gpus": 0}, "number of GPUs"),
        ({"batch_size": 1, "grad_accumulation": 0}, "gradient accumulation"),
        ({"batch_size": 1, "checkpointing": "no"}, "checkpointing must be True or False, not 'no'"),
        ({"batch_size": 1, "optimizer": "adma"}, "did you mean 'adam'"),
        ({"batch_size": 1, "precision": "fp23"}, "did you mean 'fp32'"),
        ({"batch_size": 1, "loss": "crossentropy"}, "did you mean 'cross-entropy'"),
        ({"batch_size": 1, "input_dtype": "float"}, "unknown input dtype"),
    ],
)
def test_a_wrong_field_is_refused_and_the_nearest_name_offered(fields: Dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainingJob(**fields)
    with pytest.raises(UsageError, match=message):
        TrainingJob(batch_size=1)._replace(**fields)


def test_optimizer_states_are_what_pytorch_keeps_per_parameter() -> None:
    torch = pytest.importorskip("torch")
    real = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "sgd": torch.optim.SGD,
        "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "rmsprop": torch.optim.RMSprop,
        "adagrad": torch.optim.Adagrad,
        "adafactor": torch.optim.Adafactor,
    }
    assert set(OPTIMIZERS) - set(real) == {"lion"}, "lion is not PyTorch's"
    for name, make in real.items():
        weight = torch.nn.Parameter(torch.zeros(64, 64))
        optimizer = make([weight])
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        kept = sum(v.numel() for v in optimizer.state[weight].values() if hasattr(v, "numel"))
        rule = TrainingJob(1, optimizer=name).optimizer_rule
        assert kept // weight.numel() == rule.states, name


@pytest.mark.parametrize(
    ("precision", "weight", "activation", "amp"),
    [
        ("fp32", 4, 4, False),
        ("tf32", 4, 4, False),
        ("amp-fp16", 4, 2, True),
        ("amp-bf16", 4, 2, True),
        ("bf16", 2, 2, False),
    ],
)
def test_bytes_follow_the_precision(precision: str, weight: int, activation: int, amp: bool) -> None:
    job = TrainingJob(1, precision=precision)
    assert (job.weight_bytes, job.activation_bytes, job.amp) == (weight, activation, amp)
    assert precision in PRECISIONS


def test_a_job_is_described_with_what_is_out_of_the_ordinary() -> None:
    assert describe_job(TrainingJob(128)) == "batch 128, Adam, fp32"
    job = TrainingJob(
        8, "sgd-momentum", "amp-bf16", gpus=4, grad_accumulation=2, checkpointing=True, channels_last=True
    )
    assert describe_job(job) == (
        "batch 8, SGD with momentum, AMP bf16, 4 GPUs, 2 accumulated batches, checkpointing, channels_last"
    )


def test_every_default_in_force_is_said_and_a_chosen_one_is_not() -> None:
    gpu = find_gpu("h200")
    said = assumptions(CNN, TrainingJob(8), gpu)
    for phrase in ("cross-entropy", "no checkpointing", "one GPU", "not channels_last", "input as fp32"):
        assert any(phrase in line for line in said), phrase
    chosen = TrainingJob(
        8, gpus=2, grad_accumulation=2, checkpointing=True, channels_last=True, loss="mse", input_dtype="fp16"
    )
    assert assumptions(CNN, chosen, gpu) == ("PyTorch's default allocator and foreach optimizer",)


def test_what_a_traced_script_showed_is_not_assumed() -> None:
    script = read_summary(Path(__file__).parents[2] / "docs" / "examples" / "train.json")
    assert script.trace is not None
    made = registry.run("trace", script, TrainingJob(script.trace.job.batch), find_gpu("h200"))
    said = assumptions(script, made.job, find_gpu("h200"), made)
    assert not any("cross-entropy" in line or "checkpointing" in line or "input as" in line for line in said)


def test_what_the_estimator_assumed_comes_last_and_nothing_is_said_twice() -> None:
    gpu = find_gpu("h200")
    own = ("the loss is cross-entropy over the last layer's output", "in-place ReLU as the summary shows")
    estimate = Estimate(1, 1, 1, {}, "e", "h200", TrainingJob(8), assumptions=own)
    said = assumptions(CNN, TrainingJob(8), gpu, estimate)
    assert said[-1] == "in-place ReLU as the summary shows"
    assert sum("cross-entropy" in line for line in said) == 1


def test_an_unmeasured_gpu_is_said_to_be_assumed() -> None:
    estimate = registry.run("corrected", CNN, TrainingJob(8), find_gpu("a100"))
    said = assumptions(CNN, TrainingJob(8), find_gpu("a100"), estimate)
    assert any("gpumem calibrate" in line for line in said)
    assert not any("gpumem calibrate" in line for line in assumptions(CNN, TrainingJob(8), find_gpu("h200")))


def test_the_input_of_an_embedding_is_indices() -> None:
    assert input_dtype(TEXT, TrainingJob(4)) == "int64"
    assert input_dtype(CNN, TrainingJob(4)) == "fp32"
    assert input_dtype(CNN, TrainingJob(4, precision="bf16")) == "bf16"
    assert input_dtype(TEXT, TrainingJob(4, input_dtype="uint8")) == "uint8"


def test_the_context_depends_on_the_libraries_the_job_loads() -> None:
    gpu = Gpu("x", 1000, 76, context_bare_mib=62, context_conv_mib=63, context_matmul_mib=74)
    assert gpu.context_for(conv=True, matmul=True) == 76
    assert gpu.context_for(conv=True, matmul=False) == 63
    assert gpu.context_for(conv=False, matmul=True) == 74
    assert gpu.context_for(conv=False, matmul=False) == 62
    assert Gpu("y", 1000, 76).context_for(conv=True, matmul=False) == 76


def traced_summary(**job: Any) -> ModelSummary:
    """A summary whose trace was made of a job with these fields."""
    summary = small_summary()
    assert summary.trace is not None
    trace = summary.trace._replace(job=summary.trace.job._replace(**job))
    return summary._replace(trace=trace)


def test_what_nobody_states_is_as_it_was_traced() -> None:
    summary = traced_summary(
        optimizer="sgd", precision="amp-bf16", grad_accumulation=4, checkpointing=True, channels_last=True
    )
    assert training_job(summary, StatedTraining()) == TrainingJob(
        BATCH, "sgd", "amp-bf16", grad_accumulation=4, checkpointing=True, channels_last=True
    )


def test_what_is_stated_wins_over_the_trace_even_a_no() -> None:
    summary = traced_summary(optimizer="sgd", grad_accumulation=4, checkpointing=True)
    stated = StatedTraining(batch_size=8, optimizer="AdamW", grad_accumulation=1, checkpointing=False)
    assert training_job(summary, stated, gpus=2) == TrainingJob(8, "adamw", gpus=2)


def test_an_optimizer_that_has_no_name_here_is_taken_for_the_default() -> None:
    assert training_job(traced_summary(optimizer="Lion8bit"), StatedTraining()).optimizer == "adam"


@pytest.mark.parametrize(
    ("stated", "warning"),
    [
        (StatedTraining(checkpointing=False), "traced with activation checkpointing; trace again without it"),
        (StatedTraining(grad_accumulation=8), "traced without gradient accumulation; trace again with it"),
        (StatedTraining(channels_last=True), "traced without channels_last; trace again with it"),
    ],
)
def test_a_job_that_differs_from_its_trace_is_warned_of(stated: StatedTraining, warning: str) -> None:
    summary = traced_summary(checkpointing=True)
    job = training_job(summary, stated)
    assert warning in registry.run("trace", summary, job, find_gpu("h200")).warnings
    same = training_job(summary, StatedTraining())
    assert "trace again" not in " ".join(registry.run("trace", summary, same, find_gpu("h200")).warnings)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("torch.optim.AdamW", "adamw"), ("bnb.optim.AdamW8bit", "adamw"), ("rmsprop_bnb_8bit", "rmsprop")],
)
def test_an_optimizer_may_be_named_with_its_module(written: str, meant: str) -> None:
    summary = ModelSummary("torchinfo", (Layer("Linear", params=8),))
    assert training_job(summary, StatedTraining(batch_size=8, optimizer=written)).optimizer == meant


@pytest.mark.parametrize("written", ["half", "float16", "16-true"])
def test_weights_in_fp16_are_refused_with_what_frameworks_mean(written: str) -> None:
    summary = ModelSummary("torchinfo", (Layer("Linear", params=8),))
    with pytest.raises(UsageError, match=r"(?s)no rule for weights in fp16 .*amp-fp16 is mixed precision"):
        training_job(summary, StatedTraining(batch_size=8, precision=written))
