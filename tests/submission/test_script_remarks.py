"""Remarks on a script that does not go with its estimate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Optional

import pytest

from slurm_gpumem.config.load import Config
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.slurm.submit.gpu_options import gpu_wish, merge_wishes
from slurm_gpumem.slurm.submit.sbatch_options import read_command_line, sbatch_table
from slurm_gpumem.slurm.submit.script import BatchScript
from slurm_gpumem.submission.candidate_gpus import GpuModel
from slurm_gpumem.submission.job.script_batch import the_batch
from slurm_gpumem.submission.job.script_remarks import (
    batch_remark,
    preallocation_remark,
    server_remarks,
    source_remarks,
)
from slurm_gpumem.submission.job.server_fractions import SERVERS, fraction_of, unshared_server_remark
from slurm_gpumem.submission.job.settings import OwnOptions, job_settings
from slurm_gpumem.submission.submission import RawInput, Submission, Workload
from slurm_gpumem.summaries.types import Layer, ModelSummary


def asked(body: str, *argv: str) -> Submission:
    """A job whose script runs this."""
    line = read_command_line([*argv, "job.sh"], sbatch_table())
    script = BatchScript("job.sh", "job.sh", f"#!/bin/bash\n# --batch-size 9\n{body}\n".encode())
    wishes, own = merge_wishes(line.options, {}, ()), OwnOptions({})
    raw = RawInput(line, own, script)
    return Submission(raw, job_settings(Config(), (), {}, own), options=wishes, gpus=gpu_wish(wishes, script))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("python train.py --batch-size 256", "--batch-size 256"),
        ("srun python train.py --batch_size=256 --epochs 3", "--batch_size=256"),
        ("python run.py --per_device_train_batch_size 256", "--per_device_train_batch_size 256"),
        ("python run.py data.batch_size=256", "data.batch_size=256"),
        ("python run.py --bs=256", "--bs=256"),
        ("python run.py -b 256", "-b 256"),
        ("torchrun run.py -bs 256", "-bs 256"),
    ],
)
def test_another_batch_size_in_the_command_is_remarked_with_its_line(body: str, words: str) -> None:
    remark = batch_remark(asked(body), Workload(job=TrainingJob(32)))
    assert remark == f"job.sh, line 3: has {words}, but the estimate is for a batch of 32: make them agree"


@pytest.mark.parametrize(
    "body",
    [
        "python train.py",
        "python train.py --batch-size 32",
        "python train.py --batch-size $N",
        "python a.py --batch-size 256\npython b.py --batch-size 32",
        "python train.py --eval-batch-size 256",
        "tar -b 256 x.tar",
        "N=32\npython train.py --batch-size $N",
        "N=64\nN=256\npython train.py --batch-size $N",
        "python train.py --batch-size $((N * 2))",
    ],
)
def test_no_remark_where_the_batch_agrees_or_is_not_known(body: str) -> None:
    assert batch_remark(asked(body), Workload(job=TrainingJob(32))) is None


@pytest.mark.parametrize("spelled", ["$N", "${N}", '"$N"'])
def test_a_batch_size_that_the_script_gives_a_variable_is_known(spelled: str) -> None:
    body = f"export N=256 # samples\npython train.py --batch-size {spelled}"
    remark = batch_remark(asked(body), Workload(job=TrainingJob(32)))
    assert remark is not None
    assert "job.sh, line 4: has --batch-size" in remark


@pytest.mark.parametrize(
    ("fraction", "fits"), [("0.9", False), (".75", False), ("0.23", True), ("0.05", True)]
)
def test_a_fraction_that_is_more_than_the_share_is_remarked(fraction: str, fits: bool) -> None:
    remark = remark_for(f"export XLA_PYTHON_CLIENT_MEM_FRACTION={fraction}\npython -m jax_train")
    assert (remark is None) == fits
    assert fits or "of the GPU is more than this share: 0.23 fits" in (remark or "")


def test_a_batch_divided_over_several_gpus_draws_no_remark() -> None:
    job = asked("python train.py --batch-size 256", "--gres=gpu:8")
    assert batch_remark(job, Workload(job=TrainingJob(32))) is None


@pytest.mark.parametrize(
    ("body", "size", "where"),
    [
        ("python train.py --batch-size 160", 160, "job.sh, line 3:"),
        ('N=160\npython train.py --batch-size "${N}" --eval-batch-size 512', 160, "job.sh, line 4:"),
        ("python train.py data.batch_size=64 data.eval_batch_size=512", 64, "job.sh, line 3:"),
        ("python train.py --epochs 3", 48, "train.py's default"),
        ("python train.py --config large.yaml", None, ""),
        ("python train.py --batch 160", None, ""),
        ("python train.py --batch-size $((2 * N))", None, ""),
        ("python a.py --batch-size 64\npython b.py --batch-size 32", None, ""),
        ("python train.py --global_batch_size=512", None, ""),
    ],
)
def test_a_job_has_the_one_batch_size_that_its_commands_or_a_default_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, size: Optional[int], where: str
) -> None:
    (tmp_path / "train.py").write_text(
        "p.add_argument('--epochs', default=9)\np.add_argument(\n    '-b', "
        "'--batch-size', type=int, default=48, help='(default: 7)')\n"
    )
    monkeypatch.chdir(tmp_path)
    job = asked(body)
    found = the_batch(job.commands, job.script_text)
    assert (found and (found.size, found.where)) == (size and (size, where))


def remark_for(body: str) -> Optional[str]:
    return preallocation_remark(asked(body), GpuModel("a100"), 10 * 1024)


@pytest.mark.parametrize("body", ["python -m jax_train", "python train_tf.py"])
def test_a_job_that_preallocates_is_offered_the_part_of_the_gpu_that_is_its_share(body: str) -> None:
    remark = remark_for(body)
    assert remark is not None
    assert "JAX takes 75 % of the whole GPU's memory" in remark
    # 10 GiB without the CUDA context, of 40 GiB
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION=0.23 " in remark
    assert "TF_FORCE_GPU_ALLOW_GROWTH=true" in remark


@pytest.mark.parametrize(
    "body",
    [
        "python train.py",
        "export XLA_PYTHON_CLIENT_PREALLOCATE=false\npython train_jax.py",
        "export TF_FORCE_GPU_ALLOW_GROWTH=true\npython train_tf.py",
        "python ajaxian.py",
    ],
)
def test_pytorch_jobs_and_those_that_have_settled_it_get_no_remark(body: str) -> None:
    assert remark_for(body) is None


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("loader = data_prefetcher(train_loader)", "data_prefetcher"),
        ("    prefetcher = CUDAPrefetcher(loader, opt)", "CUDAPrefetcher"),
        ("loader = timm.data.create_loader(dataset, (3, 224, 224), 64)", "create_loader"),
        ("from nvidia.dali.plugin.pytorch import DALIClassificationIterator", "nvidia.dali"),
        ("loader = DataLoader(data, prefetch_factor=4)", ""),
        ("# loader = data_prefetcher(train_loader)", ""),
    ],
)
def test_a_loader_that_prefetches_to_the_gpu_is_remarked_for_a_text(
    tmp_path: Path, line: str, name: str
) -> None:
    train = tmp_path / "train.py"
    train.write_text(f"import torch\n{line}\n")
    remarks = source_remarks(asked(f"python {train}"), ModelSummary("torchinfo", (Layer("Linear"),)))
    assert [f"{train} uses {name}: such loaders hold about one batch" in remark for remark in remarks] == (
        [True] if name else []
    )


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP", "FullyShardedDataParallel"),
        ("fully_shard(model)", "fully_shard"),
        ("engine, *_ = deepspeed.initialize(model=model)", "deepspeed.initialize"),
        ("# fully_shard(model)", ""),
    ],
)
def test_a_file_that_may_shard_its_model_is_remarked_for_a_text(tmp_path: Path, line: str, name: str) -> None:
    train = tmp_path / "train.py"
    train.write_text(f"import torch\n{line}\n")
    remarks = source_remarks(asked(f"python {train}"), ModelSummary("torchinfo", (Layer("Linear"),)))
    assert [f"{train} uses {name}: where it shards its model" in remark for remark in remarks] == (
        [True] if name else []
    )


def test_a_file_that_sets_cudnn_benchmark_is_remarked_for_a_text_of_convolutions(tmp_path: Path) -> None:
    train = tmp_path / "train.py"
    train.write_text("import torch\ntorch.backends.cudnn.benchmark = True\n")
    convolutions = ModelSummary("torchinfo", (Layer("Conv2d", params=8),))
    (remark,) = source_remarks(asked(f"python {train}"), convolutions)
    assert remark.startswith(f"{train} sets cudnn.benchmark")
    assert source_remarks(asked(f"python {train}"), ModelSummary("torchinfo", (Layer("Linear"),))) == ()
    train.write_text("# torch.backends.cudnn.benchmark = True\n")
    assert source_remarks(asked(f"python {train}"), convolutions) == ()
    assert source_remarks(asked("python missing.py"), convolutions) == ()


def test_a_job_with_a_limit_is_not_told_of_what_cudnn_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import torch\ntorch.backends.cudnn.benchmark = True\n")
    (tmp_path / "gpumem.toml").write_text('[node]\nmps = "shared"\n')
    monkeypatch.setenv("GPUMEM_SITE_CONFIG", str(tmp_path / "gpumem.toml"))
    convolutions = ModelSummary("torchinfo", (Layer("Conv2d", params=8),))
    assert source_remarks(asked(f"python {tmp_path / 'train.py'}"), convolutions) == ()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"', True),
        ("os.environ.setdefault('PYTORCH_CUDA_ALLOC_CONF', 'expandable_segments:True')", True),
        ('if os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "":', False),
        ('# os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"', False),
    ],
)
def test_a_variable_that_python_sets_itself_is_remarked(tmp_path: Path, line: str, said: bool) -> None:
    train = tmp_path / "train.py"
    train.write_text(f"import os\n{line}\n")
    remarks = source_remarks(asked(f"python {train}"), ModelSummary("torchinfo", (Layer("Linear"),)))
    assert bool(remarks) == said
    if said:
        assert f"{train} sets PYTORCH_CUDA_ALLOC_CONF itself" in remarks[0]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("vllm serve Qwen/Qwen3-8B --port 8000", "starts vLLM, .*0.9 by default.*utilization 0.25 "),
        (
            "srun vllm serve Qwen/Qwen3-8B \\\n  --gpu-memory-utilization 0.9",
            "job.sh, line 3 starts vLLM.*0.9.*utilization 0.25 ",
        ),
        ("python -m vllm.entrypoints.openai.api_server --model m", "starts vLLM"),
        ("python -m sglang.launch_server --model-path m", "starts SGLang.*--mem-fraction-static 0.20 "),
        ("sglang serve --mem-fraction-static=0.5 m", "SGLang.*mem-fraction-static 0.5"),
        ("text-generation-launcher --model-id m", "--cuda-memory-fraction 0.23 "),
        ("python serve.py --gpu-memory-utilization 0.8", "starts vLLM.*0.8"),
    ],
)
def test_a_server_is_offered_the_fraction_that_is_the_share(body: str, words: str) -> None:
    remark = server_remarks(asked(body), GpuModel("a100"), 10 * 1024)
    assert remark is not None
    assert re.search(words, remark.replace("\n", " ")), remark
    assert "not measured" in remark


@pytest.mark.parametrize(
    "body",
    [
        "vllm serve m --gpu-memory-utilization 0.25",
        "python -m sglang.launch_server --mem-fraction-static .2",
        "python train.py",
        "pip install vllm",
        "# vllm serve m",
    ],
)
def test_a_server_within_its_share_and_other_jobs_get_no_remark(body: str) -> None:
    assert server_remarks(asked(body), GpuModel("a100"), 10 * 1024) is None


def test_a_server_without_a_share_hears_which_one_its_fraction_takes() -> None:
    vllm = server_remarks(asked("vllm serve m --gpu-memory-utilization 0.3"), GpuModel("a100"), None)
    assert vllm is not None
    assert "--gpu-mem 12G is the share of a GPU that this takes" in vllm
    plain = server_remarks(asked("vllm serve m"), GpuModel("a100"), None)
    assert plain is not None
    assert "takes 90 % of the whole GPU's memory" in plain
    assert server_remarks(asked("python train.py"), GpuModel("a100"), None) is None


def test_the_share_of_a_fraction_gives_at_least_that_fraction_back() -> None:
    for server in SERVERS:
        for part in (0.1, 0.25, 0.5, 0.8):
            line = f"x {server.option} {part}"
            remark = unshared_server_remark([("job.sh", line)], 40 * 1024, 500)
            assert remark is not None
            gib = int(remark.split("--gpu-mem ")[1].split("G")[0])
            assert fraction_of(server, 40 * 1024, 500, gib * 1024) >= part - 1e-9
