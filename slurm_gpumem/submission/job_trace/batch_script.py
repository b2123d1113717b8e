"""Run a batch script as Slurm would start it, under the tracer."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from slurm_gpumem.errors import TargetError
from slurm_gpumem.estimators.types import Gpu
from slurm_gpumem.slurm.submit.gpu_options import (
    ArrayTask,
    Wishes,
    gpus_on_node,
    job_environment,
    working_directory,
)
from slurm_gpumem.submission.job_trace import stubs
from slurm_gpumem.tracing.fake_cuda.gpu_facts import GpuFacts
from slurm_gpumem.tracing.script.messages import Advice, State
from slurm_gpumem.tracing.script.run import Limits, TracedScript, trace_command
from slurm_gpumem.units import MIB

ADVICE = Advice(time="--trace-limit 600", memory="a higher trace.memory_mib in gpumem.toml")
Progress = Callable[[State, float], None]


class ScriptRun(NamedTuple):
    """One run of a batch script: what it is, and what it sees."""

    name: str
    """For messages."""
    data: bytes
    args: Tuple[str, ...]
    environment: Dict[str, str]
    """The job's, without our stubs."""
    folder: str
    gpu: GpuFacts

    @property
    def gpus(self) -> int:
        """On all nodes."""
        return self.gpu.gpus * int(self.environment.get("SLURM_NNODES") or 1)


def script_run(
    name: str,
    data: bytes,
    args: Tuple[str, ...],
    options: Wishes,
    gpu: Gpu,
    task: Optional[ArrayTask] = None,
) -> ScriptRun:
    """The run of a script with these options for sbatch, on this GPU."""
    environment = job_environment(options, os.environ, os.path.basename(name), task)
    facts = facts_of(gpu, gpus_on_node(options))
    return ScriptRun(name, data, args, environment, working_directory(options), facts)


def trace_script(run: ScriptRun, limits: Limits, progress: Progress) -> TracedScript:
    """Trace it; TargetError says why it cannot be."""
    with tempfile.TemporaryDirectory(prefix="gpumem-job-") as folder:
        # Slurm starts a copy, too: $0 is not the script's own path there either.
        script = Path(folder, "slurm_script")
        script.write_bytes(run.data)
        script.chmod(0o700)
        traced = trace_command(
            [*_interpreter(run.data), str(script), *run.args],
            limits,
            gpu=run.gpu,
            environment=stubs.install(Path(folder), run.environment),
            folder=run.folder,
            progress=progress,
            name=run.name,
            advice=ADVICE,
            left=folder,
        )
    if traced.ranks > run.gpus:
        raise TargetError(_too_many(run, traced.ranks))
    return traced


def _too_many(run: ScriptRun, ranks: int) -> str:
    """Of a script with more ranks than its job has GPUs: it is never given a share of one."""
    starts = f"{run.name}: it starts {ranks} processes that train together, for"
    if run.gpus > 1:
        return (
            f"{starts} {run.gpus} GPUs: NCCL takes one process for each GPU.\n"
            f"Ask for {ranks} GPUs, or start {run.gpus}."
        )
    return (
        f"{starts} one GPU; with NCCL each needs one of its own.\n"
        f"Ask for {ranks} GPUs (--gres=gpu:{ranks}), or give the memory of all of them together with "
        "--gpu-mem."
    )


def facts_of(gpu: Gpu, gpus: int = 1) -> GpuFacts:
    """What a script is told about its GPU, or about several of them on its node."""
    usual = GpuFacts()
    major, _, minor = gpu.compute_capability.partition(".")
    known = major.isdigit() and minor.isdigit()
    return GpuFacts(
        name=f"NVIDIA {gpu.name.upper()}",
        memory_bytes=gpu.memory_mib * MIB,
        capability=(int(major), int(minor)) if known else usual.capability,
        sms=gpu.sms or usual.sms,
        gpus=gpus,
    )


def _interpreter(data: bytes) -> List[str]:
    """The words of its first line, split as the kernel does."""
    return os.fsdecode(data.split(b"\n", 1)[0][2:].strip()).split(None, 1)
