"""Read the replay scripts of the published manager (RAD-RM, CARMA), for those who have its repository.

A script submits tasks (`python src/submit.py --task workloads/vgg3.rad`) and sleeps between them. A task's
file stands in the repository (found from the script upwards) and has its number of GPUs in line 8, its GPU
memory in line 9, and in lines 10 to 12 what Horus, FakeTensor and GPUMemNet said, all in MB. How long
tasks take is not in these files: table 6.2 of the dissertation has it, and so has MINUTES here. How active
they are is published nowhere: they are taken for usual jobs (trace_file.USUAL).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, Mapping, Tuple

from lab.simulate.trace_file import USUAL
from slurm_gpumem.errors import UsageError
from slurm_gpumem.simulation.types import SimJob
from slurm_gpumem.utilization.interference import JobLoad

_SUBMIT = re.compile(r"submit\.py\s+--task\s+(\S+\.rad)")
_SLEEP = re.compile(r"\s*sleep\s+([0-9.]+)")
_GPUS, _MEMORY, _ESTIMATES = 7, 8, ("horus", "faketensor", "gpumemnet")
MINUTES: Mapping[str, float] = {
    "xlnet_base_cased_2": 71.596, "BERT_base": 14.868, "xlnet_large_cased_2": 75.941, "BERT_large": 44.933,
    "gpt2_large_2": 64.963, "mobilenet": 36.088, "mobilenet2": 35.428, "mobilenet3": 34.910,
    "resnet": 36.316, "resnet2": 35.503, "resnet3": 35.007, "efficientNet": 36.211, "efficientNet2": 35.412,
    "efficientNet3": 35.211, "vgg": 48.448, "vgg2": 44.381, "vgg3": 42.419, "Xception": 46.864,
    "Xception2": 45.779, "Xception3": 44.440, "Inception": 50.104, "Inception2": 46.291, "Inception3": 44.854,
}  # fmt: skip
"""Epochs times minutes of an epoch."""
CIFAR_MINUTES: Mapping[str, Tuple[float, float, float]] = {
    "efficientNet": (0.7666, 0.48, 0.2734), "resnet18": (0.3284, 0.22, 0.1634),
    "resnet34": (0.486817, 0.302731, 0.200908), "mobilenet": (0.536289, 0.322098, 0.217667),
}  # fmt: skip
"""Of an epoch on CIFAR-100 with batches of 32, 64 and 128; names end in the epochs and the number of the
batch."""
_CIFAR = re.compile(r"(\w+)_cifar100_([0-9]+)e_([1-3])")
UNKNOWN_MINUTES = 5.0
"""Of tasks that table 6.2 does not have (mnist_train): an assumption."""


def read_replay(path: Path) -> List[SimJob]:
    """The tasks of a replay script; UsageError names a task file that is not there."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    jobs: List[SimJob] = []
    arrival = 0.0
    known: Dict[str, Tuple[int, int, Mapping[str, int]]] = {}
    for line in lines:
        slept, submitted = _SLEEP.match(line), _SUBMIT.search(line)
        if slept:
            arrival += float(slept[1])
        elif submitted:
            name = Path(submitted[1]).stem
            if name not in known:
                known[name] = _task(path, submitted[1])
            gpus, memory, estimates = known[name]
            jobs.append(
                SimJob(
                    len(jobs), arrival, minutes_of(name) * 60, gpus, memory, _USUAL_LOAD,
                    min(int(USUAL["startup_mib"]), memory), USUAL["startup_s"], user="one", name=name,
                    estimates=estimates,
                )
            )  # fmt: skip
    if not jobs:
        raise UsageError(f"{path}: submits no task; is it a replay script of the published manager?")
    return jobs


_USUAL_LOAD = JobLoad(USUAL["sm_active"], USUAL["sm_occupancy"], USUAL["dram_active"], USUAL["step_s"])


def minutes_of(task: str) -> float:
    """How long a task takes alone."""
    cifar = _CIFAR.fullmatch(task)
    if cifar and cifar[1] in CIFAR_MINUTES:
        return int(cifar[2]) * CIFAR_MINUTES[cifar[1]][int(cifar[3]) - 1]
    return MINUTES.get(task, UNKNOWN_MINUTES)


def _task(script: Path, named: str) -> Tuple[int, int, Mapping[str, int]]:
    for folder in script.resolve().parents:
        file = folder / named
        if file.is_file():
            break
    else:
        raise UsageError(
            f"{script}: submits {named}, which is in no folder above it: keep the repository whole"
        )
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        gpus, memory = int(lines[_GPUS]), int(float(lines[_MEMORY]))
        values = [int(float(text)) for text in lines[_MEMORY + 1 : _MEMORY + 4]]
    except (IndexError, ValueError):
        raise UsageError(f"{file}: lines 8 to 12 should be GPUs, memory and three estimates in MB") from None
    return gpus, memory, dict(zip(_ESTIMATES, values))
