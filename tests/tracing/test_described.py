"""A trace says what the model really is: its weights' type, its checkpointing, whether it trains at all."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch here")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from slurm_gpumem.estimators import registry  # noqa: E402
from slurm_gpumem.estimators.gpus import find_gpu  # noqa: E402
from slurm_gpumem.estimators.training_job import (  # noqa: E402
    StatedTraining,
    describe_estimated,
    training_job,
)
from slurm_gpumem.report.estimate import describe_model  # noqa: E402
from slurm_gpumem.tracing.engine.assemble import torch_version  # noqa: E402
from slurm_gpumem.tracing.model.live import summarize  # noqa: E402


class Adapted(nn.Module):
    """A frozen layer with a small one beside it, as LoRA adds it, checkpointed by a name of its own."""

    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.frozen, self.adapter = nn.Linear(64, 64), nn.Linear(64, 64, bias=False)
        self.frozen.requires_grad_(False)
        self.reentrant = reentrant

    def forward(self, batch: Any) -> Any:
        if self.reentrant:
            batch = batch.detach().requires_grad_()
        return checkpoint(self.blocks, batch, use_reentrant=self.reentrant)

    def blocks(self, batch: Any) -> Any:
        return self.frozen(batch) + self.adapter(batch)


def described(model: Any, **how: Any) -> str:
    weights = next(model.parameters()).dtype
    summary = summarize(model, torch.zeros(8, 64, dtype=weights), **how)
    estimate = registry.run("auto", summary, training_job(summary, StatedTraining()), find_gpu("a100"))
    assert not any("trace again" in warning for warning in estimate.warnings)
    return describe_estimated(summary, estimate)


@pytest.mark.parametrize("reentrant", [False, True])
def test_weights_of_bf16_and_checkpointing_are_seen(reentrant: bool) -> None:
    model = Adapted(reentrant).to(torch.bfloat16)
    assert described(model, optimizer="adamw") == "batch 8, AdamW, bf16, checkpointing"
    assert described(nn.Linear(64, 64)) == "batch 8, Adam, fp32"
    assert checkpoint.__module__ == "torch.utils.checkpoint"


def test_a_trace_without_training_names_no_optimizer() -> None:
    with torch.no_grad():
        assert described(nn.Linear(64, 64).eval(), optimizer=None) == "batch 8, inference, fp32"


def test_an_optimizer_without_a_rule_of_ours_is_named_as_it_is() -> None:
    assert described(nn.Linear(64, 64), optimizer="nadam") == "batch 8, nadam, fp32"


def test_a_model_that_is_trained_in_part_says_how_much_is() -> None:
    summary = summarize(Adapted(), torch.zeros(8, 64))
    assert describe_model(summary).endswith("8,256 parameters, 4,096 trained)")


@pytest.mark.parametrize(
    ("version", "has_cuda", "said"),
    [
        ("2.13.0+cpu", False, "2.13.0+cpu"),
        # As conda and macOS build it.
        ("2.13.0", False, "2.13.0+cpu"),
        ("2.13.0", True, "2.13.0"),
        ("2.13.0+cu130", True, "2.13.0+cu130"),
    ],
)
def test_a_trace_says_whether_the_build_that_made_it_has_cuda(
    version: str, has_cuda: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch._C, "_has_cuda", has_cuda)
    assert torch_version() == said
