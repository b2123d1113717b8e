"""gpusbatch for jobs on several GPUs, and for several processes on one: a verdict before they queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.summaries.parsers.own import save_summary
from slurm_gpumem.summaries.trace_types import PARAMETER, Phase, Site, Trace, TracedJob
from slurm_gpumem.summaries.types import Layer, ModelSummary

pytestmark = pytest.mark.slurm

GIB = 1 << 30
BLOCKS = 16


def large_model(path: Path, gib: int) -> None:
    """A summary of a model with this many GiB of parameters in blocks, trained by Adam."""
    size = gib * GIB // BLOCKS
    names = [f"h.{number}" for number in range(BLOCKS)]
    sites = []
    for name in names:
        sites.append(Site((size,), PARAMETER, name, "weights"))
    forward = len(sites)
    sites += [Site((0, 1 << 20), "aten::mm", name, "activations") for name in names]
    gradients = len(sites)
    sites += [Site((size,), "aten::mm", name, "gradients") for name in names]
    states = len(sites)
    sites += [Site((size,), "aten::zeros_like", name, "optimizer") for name in names]
    events = list(range(forward))
    phases = [Phase(0, "setup", 0), Phase(len(events), "forward", 1)]
    events += range(forward, forward + BLOCKS)
    phases.append(Phase(len(events), "backward", 1))
    for number in reversed(range(BLOCKS)):
        events.append(gradients + number)
    phases.append(Phase(len(events), "optimizer", 1))
    for number in range(BLOCKS):
        events += [states + number, states + number]
    trace = Trace(
        TracedJob(batch=4, optimizer="adam"),
        "meta",
        tuple(sites),
        tuple(events),
        tuple(phases),
        uses_matmul=True,
    )
    layers = tuple(Layer("Block", params=size // 4, name=name) for name in names)
    total = gib * GIB // 4
    summary = ModelSummary(
        "gpumem", layers, "large", 4, total_params=total, trainable_params=total, trace=trace
    )
    save_summary(summary, path)


def said(done: Any) -> str:
    """Its messages, however they are broken into lines."""
    return " ".join(done.stderr.split())


def ask(desk: Any, gpus: int, *options: str) -> Any:
    return desk.call("--dry-run", f"--gres=gpu:{gpus}", "job.sh", "--model", "large.json", *options)


SHARDED = "it shards its model over GPUs (FSDP): its peak is not estimated; it keeps whole GPUs"


@pytest.mark.parametrize("gpus", [1, 4])
def test_a_job_that_shards_its_model_keeps_its_whole_gpus_unchanged_and_says_why(
    desk: Any, gpus: int
) -> None:
    large_model(desk.folder / "large.json", 30)
    done = ask(desk, gpus, "--strategy", "fsdp")
    assert done.returncode == 0, done.stderr
    assert SHARDED in said(done)
    assert "GiB" not in said(done)
    assert f"--gres=gpu:{gpus} " in done.stdout


def test_a_sharded_job_that_asks_for_no_gpu_gets_a_whole_one(desk: Any) -> None:
    large_model(desk.folder / "large.json", 1)
    done = desk.call("--dry-run", "job.sh", "--model", "large.json", "--strategy", "fsdp")
    assert done.returncode == 0, done.stderr
    assert SHARDED in said(done)
    assert "--gres=gpu:1" in done.stdout


@pytest.mark.parametrize(
    ("command", "by"),
    [
        ("deepspeed --num_gpus=2 train.py", "DeepSpeed"),
        ("torchrun --nproc-per-node=2 run_clm.py --deepspeed ds.json", "DeepSpeed"),
        ("accelerate launch --use_fsdp train.py", "FSDP"),
        ("python train.py fit --trainer.strategy=deepspeed_stage_2", "Lightning's strategy"),
        ("torchrun pretrain_gpt.py --tensor-model-parallel-size 2", "tensor parallelism"),
    ],
)
def test_a_command_that_shards_its_model_keeps_whole_gpus_and_names_the_line(
    desk: Any, command: str, by: str
) -> None:
    large_model(desk.folder / "large.json", 1)
    desk.script("job.sh", command)
    done = ask(desk, 2)
    assert done.returncode == 0, done.stderr
    assert f"it shards its model over GPUs ({by}: job.sh, line " in said(done)
    assert "--gres=gpu:2 " in done.stdout


def test_words_that_only_look_like_sharding_change_nothing(desk: Any) -> None:
    large_model(desk.folder / "large.json", 1)
    desk.script(
        "job.sh", "conda activate deepspeed\npython train.py --tensor-parallel-size 1 --eval_strategy steps"
    )
    done = ask(desk, 1)
    assert "shard:" in done.stdout, done.stderr
    desk.script("job.sh", "deepspeed train.py")
    assert "shard:" in ask(desk, 1, "--strategy", "ddp").stdout
    by_hand = desk.call("--dry-run", "--gres=gpu:1", "job.sh", "--gpu-mem", "8G")
    assert "shard:" in by_hand.stdout


def test_a_model_that_no_gpu_holds_is_not_submitted_where_its_owner_says_that_each_has_all_of_it(
    desk: Any,
) -> None:
    large_model(desk.folder / "large.json", 30)
    done = ask(desk, 2, "--strategy", "ddp")
    assert done.returncode == 1
    assert "each of 2 GPUs needs" in said(done)
    assert "Nothing was submitted. Use --exclusive-gpu to try anyway" in said(done)
    assert ask(desk, 2, "--strategy", "ddp", "--exclusive-gpu").returncode == 0


def test_a_job_that_needs_less_than_half_of_each_gpu_is_told_why_it_cannot_share_them(desk: Any) -> None:
    large_model(desk.folder / "large.json", 1)
    done = ask(desk, 2)
    assert done.returncode == 0, done.stderr
    assert "parts of several GPUs cannot be asked for" in said(done)
    assert "--gres=gpu:2" in done.stdout


def test_without_a_strategy_such_a_job_is_only_warned(desk: Any) -> None:
    large_model(desk.folder / "large.json", 30)
    done = ask(desk, 4)
    assert done.returncode == 0, done.stderr
    assert "if every one holds the whole model. --strategy fsdp says that it is sharded" in said(done)


def shards(done: Any) -> int:
    return int(done.stdout.split("shard:")[1].split()[0].strip("'\""))


def test_a_rank_on_each_of_two_nodes_has_a_share_with_its_buckets_and_nccl(desk: Any) -> None:
    large_model(desk.folder / "large.json", 4)
    desk.script("job.sh", "srun torchrun --nnodes=2 --nproc-per-node=1 train.py")
    alone, ranks = ask(desk, 1), ask(desk, 1, "--nodes=2")
    assert "on each of 2 nodes" in said(ranks)
    assert shards(ranks) >= shards(alone) + 4
    without = desk.call("--dry-run", "--nodes=2", "job.sh", "--model", "large.json")
    assert shards(without) == shards(ranks)


def test_more_processes_than_gpus_are_refused(desk: Any) -> None:
    large_model(desk.folder / "large.json", 1)
    desk.script("job.sh", "torchrun --nproc-per-node=8 train.py")
    done = ask(desk, 4)
    assert done.returncode == 2
    assert "torchrun starts 8 processes on each node, for 4 GPUs" in said(done)


def test_several_processes_on_one_gpu_ask_for_the_memory_of_all(desk: Any) -> None:
    large_model(desk.folder / "large.json", 1)
    desk.script("job.sh", "torchrun --nproc_per_node 1 train.py")
    one = ask(desk, 1)
    desk.script("job.sh", "torchrun --nproc_per_node 3 train.py")
    three = ask(desk, 1)
    assert "the memory of all of them is asked for" in said(three)

    assert 3 * shards(one) - 3 <= shards(three) <= 3 * shards(one)
