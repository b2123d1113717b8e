"""Rules of each strategy, on a small model's trace."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from slurm_gpumem import estimate, summarize
from slurm_gpumem.errors import GpumemError, UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.ranks import rank_trace
from slurm_gpumem.estimators.ranks.strategy import parse_strategy, strategy_names
from slurm_gpumem.estimators.training_job import StatedTraining, training_job
from slurm_gpumem.summaries.trace_types import BUCKET, NCCL, PARAMETER
from slurm_gpumem.summaries.types import ModelSummary
from tests.estimators.ranks import one_rank
from tests.estimators.ranks.rank_figures import figures, of_rank

WHOLE = 4 * sum(p.numel() for p in one_rank.build().parameters())
BLOCK = 4 * sum(p.numel() for p in one_rank.Block(one_rank.WIDTH).parameters())


@pytest.fixture(scope="module")
def summary() -> ModelSummary:
    return summarize(one_rank.build(), torch.zeros(one_rank.ROWS, 101), optimizer="adamw", loss="mse")


@pytest.mark.parametrize("strategy", strategy_names())
def test_every_strategy_gives_a_trace_that_can_be_replayed_and_says_that_it_is_computed(
    summary: ModelSummary, strategy: str
) -> None:
    found = estimate(summary, gpus=2, strategy=strategy, gpu="h200")
    assert found.peak_mib > found.parts["context"]
    assert any("computed, not measured" in text for text in found.assumptions)
    assert found.no_utilization


@pytest.mark.parametrize("strategy", [name for name in strategy_names() if name != "ddp"])
def test_more_ranks_never_hold_more_states(summary: ModelSummary, strategy: str) -> None:
    two, three = (of_rank(summary, strategy, ranks)["optimizer"] for ranks in (2, 3))
    assert three < two < 2 * WHOLE + WHOLE / 2 + 1


def test_ddp_closes_its_first_bucket_at_one_mebibyte_and_the_others_at_the_cap(summary: ModelSummary) -> None:
    assert summary.trace is not None
    trace, _ = rank_trace(summary.trace, summary.layers, "ddp,bucket_cap_mb=4", 2)
    sizes = [site.bytes[0] for _, _, site in trace.allocations() if site and site.operator == BUCKET]
    # One for all until the first step is over.
    assert sizes[0] == sum(sizes[1:]) == WHOLE
    assert figures(trace)["buckets"] == WHOLE
    assert sizes[1] >= 1 << 20
    assert all(size >= 4 << 20 for size in sizes[2:-1])


def test_fsdp1_asks_for_more_than_it_is_computed_to_hold(summary: ModelSummary) -> None:
    gpu = find_gpu("h200")
    one, two = (
        registry.run(
            "trace", summary, replace(training_job(summary, StatedTraining()), gpus=2, strategy=name), gpu
        )
        for name in ("fsdp1", "fsdp")
    )
    assert one.request_mib / one.peak_mib > 1.1 > two.request_mib / two.peak_mib
    assert any("10 % wider" in text for text in one.assumptions)


def test_nccl_is_counted_once(summary: ModelSummary) -> None:
    assert summary.trace is not None
    trace, _ = rank_trace(summary.trace, summary.layers, "fsdp", 2)
    assert sum(bool(site and site.operator == NCCL) for _, _, site in trace.allocations()) == 1


def test_zero_keeps_an_fp32_copy_of_its_partition_beside_two_states(summary: ModelSummary) -> None:
    for strategy in ("zero1", "zero2", "zero3"):
        assert of_rank(summary, strategy, 2)["optimizer"] == pytest.approx(3 * WHOLE / 2, rel=0.001)


def test_zero_2_takes_a_bucket_of_its_full_size_for_any_model(summary: ModelSummary) -> None:
    usual, small = (
        of_rank(summary, f"zero2,reduce_bucket_size={size}", 2)["peak"] for size in ("5e8", "4e8")
    )
    assert usual - small == 4 * 100_000_000
    assert usual > 4 * 500_000_000 > 20 * WHOLE


def test_zero_3_lets_parameters_go_when_they_do_not_come_again_soon(summary: ModelSummary) -> None:
    near, far = (
        of_rank(summary, f"zero3,reduce_bucket_size=1e6,stage3_max_reuse_distance={reach}", 2)["peak"]
        for reach in ("1e9", "0")
    )
    assert near - far > BLOCK


def test_a_pipeline_s_first_stage_holds_several_micro_batches(summary: ModelSummary) -> None:
    one, four = (of_rank(summary, f"pp,micro_batches={number}", 2)["peak"] for number in (1, 4))
    assert four >= one
    assert of_rank(summary, "pp", 2)["weights"] < WHOLE * 0.6


def test_tensor_parallel_divides_products_and_what_is_between_them(summary: ModelSummary) -> None:
    found = of_rank(summary, "tp", 2)
    around = WHOLE - one_rank.DEPTH * BLOCK
    assert found["weights"] == pytest.approx(around + one_rank.DEPTH * BLOCK / 2, rel=0.01)


def test_mixed_precision_keeps_shards_in_fp32_and_gathers_half_of_that() -> None:
    model, batch = one_rank.build().bfloat16(), torch.zeros(one_rank.ROWS, 101, dtype=torch.bfloat16)
    half = summarize(model, batch, optimizer="adamw", loss="mse", precision="bf16")
    plain, mixed = of_rank(half, "fsdp", 2), of_rank(half, "fsdp,mixed", 2)
    assert mixed["weights"] == 2 * plain["weights"]
    assert mixed["optimizer"] == 2 * plain["optimizer"]
    assert mixed["pool"] == plain["pool"]


def test_blocks_are_found_in_stages_and_by_their_class() -> None:
    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(one_rank.Block(64) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in self.parts:
                x = part(x)
            return x

    found = summarize(nn.Sequential(Stage(), Stage()), torch.zeros(8, 64))
    assert found.trace is not None
    for strategy, blocks in (("fsdp", "4 blocks (Block)"), ("fsdp,wrap=Stage", "2 blocks (Stage)")):
        _, said = rank_trace(found.trace, found.layers, strategy, 2)
        assert any(blocks in text for text in said), said


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("fsdp3", "unknown strategy 'fsdp3'"),
        ("fsdp,wrapped=yes", "unknown option of strategy fsdp"),
        ("zero2,reduce_bucket_size=many", "must be a whole number"),
        ("ddp,gradient_as_bucket_view=maybe", "must be yes or no"),
        ("fsdp,reduce=fp8", "unknown reduce"),
    ],
)
def test_a_wrong_strategy_says_what_is_wrong(text: str, wrong: str) -> None:
    with pytest.raises(GpumemError, match=wrong):
        parse_strategy(text)


def test_what_a_trace_cannot_divide_is_refused(summary: ModelSummary) -> None:
    assert summary.trace is not None
    refused = {
        ("pp", 40): "fewer than 40 ranks",
        ("fsdp,wrap=Decoder", 2): "no layer of class Decoder",
        ("fsdp,mixed", 2): "mixed precision computes in bf16",
    }
    for (strategy, ranks), words in refused.items():
        with pytest.raises(UsageError, match=words):
            rank_trace(summary.trace, summary.layers, strategy, ranks)
    plain = summarize(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)), torch.zeros(8, 64))
    assert plain.trace is not None
    with pytest.raises(UsageError, match="does not show how"):
        rank_trace(plain.trace, plain.layers, "tp", 2)
    strange = tuple(
        replace(site, bytes=(site.bytes[0] + 4,)) if site.category == "gradients" else site
        for site in summary.trace.sites
    )
    with pytest.raises(UsageError, match="cannot be divided"):
        rank_trace(replace(summary.trace, sites=strange), summary.layers, "fsdp", 2)
    unnamed = replace(summary.trace, sites=tuple(replace(site, module="") for site in summary.trace.sites))
    with pytest.raises(UsageError, match="no blocks to divide"):
        rank_trace(unnamed, summary.layers, "fsdp", 2)
    inference = replace(summary.trace, phases=summary.trace.phases[:2])
    with pytest.raises(UsageError, match="no backward pass"):
        rank_trace(inference, summary.layers, "fsdp", 2)


def test_where_no_strategy_is_stated_nothing_is_refused(summary: ModelSummary) -> None:
    assert summary.trace is not None
    inference = replace(summary.trace, phases=summary.trace.phases[:2])
    assert rank_trace(inference, summary.layers, "", 2)[0] is inference
    earlier = tuple(
        replace(site, operator="aten::_to_copy", module="") if site.operator == PARAMETER else site
        for site in summary.trace.sites
    )
    by_size, _ = rank_trace(replace(summary.trace, sites=earlier), summary.layers, "", 2)
    named, _ = rank_trace(summary.trace, summary.layers, "", 2)
    assert figures(by_size)["buckets"] == figures(named)["buckets"] == WHOLE


def test_a_strategy_needs_several_gpus_and_a_trace(summary: ModelSummary) -> None:
    with pytest.raises(UsageError, match="is for several GPUs"):
        estimate(summary, strategy="fsdp")
    with pytest.raises(UsageError, match="needs a trace"):
        estimate(replace(summary, trace=None), batch_size=8, gpus=2, strategy="fsdp", gpu="h200")
