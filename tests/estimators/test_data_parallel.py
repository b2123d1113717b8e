"""One rank of data parallel training, computed from the trace of one process, against PyTorch's own DDP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Dict

import pytest

pytest.importorskip("torch")

import torch

from slurm_gpumem import estimate, summarize
from slurm_gpumem.errors import GpumemError, NotEstimatedError
from slurm_gpumem.estimators.traced.changes import rank_trace
from slurm_gpumem.estimators.training_job import StatedTraining, training_job
from slurm_gpumem.summaries.parsers.own import parse, to_json
from slurm_gpumem.summaries.trace_types import BUCKET, NCCL, NCCL_FIRST_GROUP, PARAMETER, Trace
from slurm_gpumem.summaries.types import ModelSummary
from tests.estimators import ddp_rank
from tests.estimators.rank_figures import figures

WHOLE = 4 * sum(p.numel() for p in ddp_rank.Model().parameters())


@pytest.fixture(scope="module")
def summary() -> ModelSummary:
    batch = torch.zeros(ddp_rank.ROWS, 101)
    return summarize(ddp_rank.Model(), batch, optimizer="adamw", loss="mse", scalable=False)


@pytest.fixture
def traced(summary: ModelSummary) -> Trace:
    assert summary.trace is not None
    return summary.trace


def _two_processes(folder: Path) -> Dict[str, int]:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, ddp_rank.__file__, str(rank), "2", str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
        )
        for rank in (0, 1)
    ]
    for process in running:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said.decode()[-2000:]
    found: Dict[str, int] = json.loads((folder / "0.json").read_text())
    return found


def test_a_rank_holds_the_bytes_that_two_real_processes_hold(traced: Trace, tmp_path: Path) -> None:
    real = _two_processes(tmp_path)
    computed = figures(rank_trace(traced, 2)[0])
    for part in ("weights", "gradients", "optimizer"):
        assert computed[part] == real[part]
    assert computed["peak"] == pytest.approx(real["peak"], rel=0.005)


def test_one_bucket_for_all_gradients_is_replaced_by_several_after_the_first_step(traced: Trace) -> None:
    trace, said = rank_trace(traced, 2)
    sizes = [site.bytes[0] for _, _, site in trace.allocations() if site and site.operator == BUCKET]
    assert sizes[0] == sum(sizes[1:]) == WHOLE
    assert sizes[1] >= 1 << 20
    assert all(size >= 25 << 20 for size in sizes[2:-1])
    assert any("computed, not measured" in text for text in said)


def test_nccl_is_counted_once(traced: Trace) -> None:
    trace, _ = rank_trace(traced, 2)
    assert sum(bool(site and site.operator == NCCL) for _, _, site in trace.allocations()) == 1
    assert rank_trace(trace, 2)[0] is trace


def test_a_trace_of_a_script_s_own_rank_stays_as_it_is(traced: Trace) -> None:
    own = traced._replace(job=traced.job._replace(ranks=2))
    assert rank_trace(own, 2)[0] is own


def test_inference_holds_the_model_and_nothing_more(traced: Trace) -> None:
    inference = traced._replace(phases=traced.phases[:2])
    assert rank_trace(inference, 2)[0] is inference


def test_traces_of_earlier_versions_get_the_same_buckets(traced: Trace) -> None:
    earlier = tuple(
        site._replace(operator="aten::_to_copy", module="") if site.operator == PARAMETER else site
        for site in traced.sites
    )
    assert figures(rank_trace(traced._replace(sites=earlier), 2)[0])["buckets"] == WHOLE


def test_a_text_s_estimate_counts_buckets_and_nccl_on_several_gpus(summary: ModelSummary) -> None:
    text = summary._replace(trace=None)
    one, two = (estimate(text, batch_size=8, gpus=gpus, gpu="h200") for gpus in (1, 2))
    assert two.parts["gradients"] == 2 * one.parts["gradients"] > 0
    assert two.parts["workspace"] - one.parts["workspace"] >= NCCL_FIRST_GROUP >> 20
    assert sum(two.parts.values()) == two.peak_mib < two.request_mib


@pytest.mark.parametrize(
    ("strategy", "by"),
    [("fsdp", "FSDP"), ("fsdp1-grad-op", "FSDP"), ("zero3,reduce_bucket_size=2e8", "ZeRO"),
     ("deepspeed", "DeepSpeed"), ("TP", "tensor parallelism"), ("pp", "pipeline parallelism")],
)  # fmt: skip
def test_a_strategy_that_shards_the_model_is_not_estimated(
    summary: ModelSummary, strategy: str, by: str
) -> None:
    with pytest.raises(NotEstimatedError) as caught:
        training_job(summary, StatedTraining(strategy=strategy), gpus=4)
    said = f"it shards its model over GPUs ({by}): its peak is not estimated; it keeps whole GPUs"
    assert (str(caught.value), caught.value.exit_code) == (said, 1)


def test_ddp_is_what_several_gpus_mean_and_an_unknown_strategy_names_the_known(summary: ModelSummary) -> None:
    assert training_job(summary, StatedTraining(strategy="ddp"), gpus=4).gpus == 4
    with pytest.raises(GpumemError, match="unknown strategy 'horovod'"):
        training_job(summary, StatedTraining(strategy="horovod"), gpus=4)


def test_a_trace_that_an_earlier_version_made_of_a_sharded_model_is_not_read_as_a_whole_one(
    summary: ModelSummary,
) -> None:
    document = json.loads(to_json(summary))
    document["trace"]["job"]["strategy"] = "ddp"
    assert parse(json.dumps(document), origin="test").trace is not None
    document["trace"]["job"]["strategy"] = "fsdp,wrap=Block"
    with pytest.raises(NotEstimatedError, match=r"shards its model over GPUs \(fsdp\)"):
        parse(json.dumps(document), origin="test")
