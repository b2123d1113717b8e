"""Remarks on a script that does not go with its estimate."""

from __future__ import annotations

from pathlib import Path

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
from tests.support.kept import assert_kept


def asked(body: str, *argv: str) -> Submission:
    """A job whose script runs this."""
    line = read_command_line([*argv, "job.sh"], sbatch_table())
    script = BatchScript("job.sh", "job.sh", f"#!/bin/bash\n# --batch-size 9\n{body}\n".encode())
    wishes, own = merge_wishes(line.options, {}, ()), OwnOptions({})
    raw = RawInput(line, own, script)
    return Submission(raw, job_settings(Config(), (), {}, own), options=wishes, gpus=gpu_wish(wishes, script))


COMMANDS = (
    "python train.py",
    "python train.py --batch-size 256",
    "python train.py --batch-size 32",
    "python train.py --batch-size 160",
    "python train.py --batch-size $N",
    "python train.py --batch-size $((2 * N))",
    "python train.py --batch 160",
    "python train.py --epochs 3",
    "python train.py --config large.yaml",
    "python train.py --eval-batch-size 256",
    "python train.py --global_batch_size=512",
    "srun python train.py --batch_size=256 --epochs 3",
    "python run.py --per_device_train_batch_size 256",
    "python run.py data.batch_size=256",
    "python train.py data.batch_size=64 data.eval_batch_size=512",
    "python run.py --bs=256",
    "python run.py -b 256",
    "torchrun run.py -bs 256",
    "tar -b 256 x.tar",
    "python a.py --batch-size 256\npython b.py --batch-size 32",
    "N=32\npython train.py --batch-size $N",
    "N=64\nN=256\npython train.py --batch-size $N",
    "export N=256 # samples\npython train.py --batch-size $N",
    "export N=256 # samples\npython train.py --batch-size ${N}",
    'N=160\npython train.py --batch-size "${N}" --eval-batch-size 512',
    "python -m jax_train",
    "python train_tf.py",
    "python ajaxian.py",
    *(
        f"export XLA_PYTHON_CLIENT_MEM_FRACTION={part}\npython -m jax_train"
        for part in ("0.9", ".75", "0.05")
    ),
    "export XLA_PYTHON_CLIENT_MEM_FRACTION=0.23\npython -m jax_train",
    "export XLA_PYTHON_CLIENT_PREALLOCATE=false\npython train_jax.py",
    "export TF_FORCE_GPU_ALLOW_GROWTH=true\npython train_tf.py",
    "vllm serve Qwen/Qwen3-8B --port 8000",
    "srun vllm serve Qwen/Qwen3-8B \\\n  --gpu-memory-utilization 0.9",
    "vllm serve m --gpu-memory-utilization 0.25",
    "vllm serve m --gpu-memory-utilization 0.3",
    "vllm serve m --port 1 \\  \n  --gpu-memory-utilization \\\n  0.25 \\\n\npython train.py",
    "python -m vllm.entrypoints.openai.api_server --model m",
    "python -m sglang.launch_server --model-path m",
    "python -m sglang.launch_server --mem-fraction-static .2",
    "sglang serve --mem-fraction-static=0.5 m",
    "text-generation-launcher --model-id m",
    "python serve.py --gpu-memory-utilization 0.8",
    "pip install vllm",
    "# vllm serve m",
)
SOURCES = (
    "loader = data_prefetcher(train_loader)",
    "    prefetcher = CUDAPrefetcher(loader, opt)",
    "loader = timm.data.create_loader(dataset, (3, 224, 224), 64)",
    "from nvidia.dali.plugin.pytorch import DALIClassificationIterator",
    "loader = DataLoader(data, prefetch_factor=4)",
    "# loader = data_prefetcher(train_loader)",
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
    "fully_shard(model)",
    "engine, *_ = deepspeed.initialize(model=model)",
    "# fully_shard(model)",
    "torch.backends.cudnn.benchmark = True",
    "# torch.backends.cudnn.benchmark = True",
    'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"',
    "os.environ.setdefault('PYTORCH_CUDA_ALLOC_CONF', 'expandable_segments:True')",
    'if os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "":',
    '# os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"',
)
DEFAULTS = (
    "p.add_argument('--epochs', default=9)\np.add_argument(\n    '-b', "
    "'--batch-size', type=int, default=48, help='(default: 7)')\n"
)
TEXTS = [ModelSummary("torchinfo", (Layer(kind, params=8),)) for kind in ("Linear", "Conv2d")]


def test_remarks_on_commands_and_on_the_files_that_they_run_are_what_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train, gpu = Path("train.py"), GpuModel("a100")
    train.write_text(DEFAULTS)
    said = {}
    for body in COMMANDS:
        job = asked(body)
        said[body] = repr((
            [batch_remark(one, Workload(job=TrainingJob(32))) for one in (job, asked(body, "--gres=gpu:8"))],
            the_batch(job.commands, job.script_text),
            preallocation_remark(job),
            [server_remarks(job, gpu, share) for share in (10 * 1024, 30 * 1024, None)],
        ))  # fmt: skip
    for line in SOURCES:
        train.write_text(f"import os, torch\n{line}\n")
        for site in ("", '[node]\nmps = "shared"\n'):
            Path("gpumem.toml").write_text(site)
            monkeypatch.setenv("GPUMEM_SITE_CONFIG", str(tmp_path / "gpumem.toml"))
            remarks = [source_remarks(asked("python train.py; python missing.py"), text) for text in TEXTS]
            said[line + site] = repr(remarks)
    assert_kept(Path(__file__).with_name("remarks.json"), said)


def test_the_share_of_a_fraction_gives_at_least_that_fraction_back() -> None:
    for server in SERVERS:
        for part in (0.1, 0.25, 0.5, 0.8):
            line = f"x {server.option} {part}"
            remark = unshared_server_remark([("job.sh", line)], 40 * 1024, 500)
            assert remark is not None
            gib = int(remark.split("--gpu-mem ")[1].split("G")[0])
            assert fraction_of(server, 40 * 1024, 500, gib * 1024) >= part - 1e-9
