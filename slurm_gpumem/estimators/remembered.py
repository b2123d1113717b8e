"""The estimator `remembered`: what runs of the same job measured, which beats any estimate.

A run is the same when the model's fingerprint, the batch, the optimizer, the precision, the rarer settings
and the GPU type are. Peaks are read from a small file that the accounting writes for each user
(`accounting.remember`): one's own runs only, so that nobody can talk down what another's job asks for.
"""

from __future__ import annotations

import os
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.config.read import read_file
from slurm_gpumem.config.schema import ACCOUNTING
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.gpus import gpu_in, plain_gpu
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import format_mib

if TYPE_CHECKING:
    from slurm_gpumem.formats.remembered import CpuRun

NAME = "remembered"
ENOUGH_RUNS = 3
"""From this number of runs on gpusbatch trusts them without being asked."""
_LEAST_RESERVE = 0.02
"""Above the largest peak: the allocator may still grow when a run is longer than those before."""
_ONE_RUN_RESERVE = 0.2
"""Above the peak of a single run of a script of which nothing else is known; two runs need half of it, and so
on. A choice, not a measurement: a run that needs more costs a requeue on a whole GPU."""


def estimate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """The measured peak of earlier runs; UsageError when there were none."""
    peaks = recall(summary, job, gpu)
    if not peaks:
        raise UsageError(
            f"no finished run of this model, batch, optimizer and precision on {gpu.name} is remembered.\n"
            "Leave --estimator out for this one; `gpumem report` shows which runs were measured."
        )
    return from_peaks(summary, job, gpu, peaks)


def recall(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Tuple[int, ...]:
    """Measured peaks of the same job, the latest first."""
    return _peaks(_words(summary, job), gpu)


def recall_activity(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Tuple[int, ...]:
    """SM activity, in percent, of runs of the same job that had such a GPU to themselves for a while."""
    from slurm_gpumem.formats.remembered import ACTIVITY

    return tuple(percent for percent in _peaks(_words(summary, job), gpu, ACTIVITY) if percent <= 100)


def activity_of_script(key: str, gpu: Gpu) -> Tuple[int, ...]:
    """The same of runs of a script of whose model nothing is known."""
    from slurm_gpumem.formats.remembered import ACTIVITY

    return tuple(percent for percent in _peaks((key, "", "", "", ""), gpu, ACTIVITY) if percent <= 100)


def cpus_of_runs(fingerprint: str, job: Optional[TrainingJob], gpu: Gpu) -> Tuple[CpuRun, ...]:
    """The CPUs of runs of the same job, of a script where `job` is None."""
    from slurm_gpumem.formats.remembered import Recipe, read_cpus

    words = (
        (str(job.batch_size), job.optimizer, job.precision, variant(job))
        if job is not None
        else ("", "", "", "")
    )
    found: Tuple[CpuRun, ...] = ()
    for path in remembered_files():
        by_gpu = read_cpus(path, Recipe(fingerprint, *words))
        same = [runs for name, runs in by_gpu.items() if _counts(name, gpu, whole_too=True)]
        found = max(found, tuple(chain.from_iterable(same)), key=len)
    return found


def _words(summary: ModelSummary, job: TrainingJob) -> Tuple[str, str, str, str, str]:
    return summary.fingerprint, str(job.batch_size), job.optimizer, job.precision, variant(job)


def of_script(key: str, gpu: Gpu) -> Optional[Estimate]:
    """What earlier runs of a script measured of which nothing else is known; None without any."""
    peaks = _peaks((key, "", "", "", ""), gpu)
    return _of_peaks(peaks, gpu) if peaks else None


def of_run(measured_on: str, peak_mib: int, gpu: Gpu) -> Optional[Estimate]:
    """The same of one run; None where it says nothing of this GPU."""
    return _of_peaks((peak_mib,), gpu) if _counts(measured_on, gpu, whole_too=True) else None


def _of_peaks(peaks: Tuple[int, ...], gpu: Gpu) -> Estimate:
    return Estimate(
        peak_mib=max(peaks),
        request_mib=request_of_script(peaks),
        floor_mib=min(peaks),
        parts={},
        estimator=NAME,
        gpu=gpu.name,
        job=TrainingJob(batch_size=1),
        assumptions=(_told(peaks, gpu),),
    )


def request_of_script(peaks: Sequence[int]) -> int:
    """What the next run of a script asks for: the fewer runs there were, the larger the reserve."""
    most = max(peaks)
    reserve = max(_LEAST_RESERVE, _ONE_RUN_RESERVE / len(peaks))
    return most + max(most - min(peaks), ceil(most * reserve))


def _peaks(words: Tuple[str, str, str, str, str], gpu: Gpu, table: str = "runs") -> Tuple[int, ...]:
    from slurm_gpumem.formats.remembered import Recipe, read_remembered

    recipe = Recipe(*words)
    found: Tuple[int, ...] = ()
    for path in remembered_files():
        by_gpu = read_remembered(path, recipe, table)
        same = [seen for name, seen in by_gpu.items() if _counts(name, gpu, whole_too=table == "runs")]
        # Both files may hold the same runs: the one that has more of them is taken.
        found = max(found, tuple(chain.from_iterable(same)), key=len)
    return found


def _counts(measured_on: str, gpu: Gpu, *, whole_too: bool) -> bool:
    """Whether what was measured there holds on this GPU.

    A MIG instance and its GPU are two things: activity is a part of what each has, and a context may be
    smaller on an instance. A peak on the whole GPU is an upper bound for an instance, not the reverse.
    """
    seen, wanted = profile_name(measured_on) or "", gpu.profile
    named = gpu_in(gpu.name) if wanted else gpu.name
    if seen != wanted and (seen or not whole_too):
        return False
    # "1g.18gb" alone may be an instance of any GPU that has it.
    return plain_gpu(measured_on) == plain_gpu(named) if named else seen == wanted


def from_peaks(summary: ModelSummary, job: TrainingJob, gpu: Gpu, peaks: Tuple[int, ...]) -> Estimate:
    """An estimate that rests on measured peaks; where the memory goes is the structural estimator's word."""
    from slurm_gpumem.estimators.structural.estimator import estimate as structural

    rebuilt = structural(summary, job, gpu)
    least, most = min(peaks), max(peaks)
    reserve = max(most - least, ceil(most * _LEAST_RESERVE))
    return Estimate(
        peak_mib=most,
        request_mib=most + reserve,
        floor_mib=min(rebuilt.floor_mib, least),
        parts=_scaled(rebuilt.parts, most),
        estimator=NAME,
        gpu=gpu.name,
        job=job,
        assumptions=(_told(peaks, gpu),),
    )


def _told(peaks: Tuple[int, ...], gpu: Gpu) -> str:
    least, most = format_mib(min(peaks)), format_mib(max(peaks))
    runs = f"{len(peaks)} run{'' if len(peaks) == 1 else 's'}"
    return f"remembered: {runs} on {gpu.name} took {most if most == least else f'{least} to {most}'}"


def variant(job: TrainingJob) -> str:
    """The rarer settings in one word, as the job's record holds it; "" where all are at their defaults."""
    usual = TrainingJob(batch_size=job.batch_size)
    words = [
        f"ddp{job.gpus}" if job.gpus > 1 else "",
        f"acc{job.grad_accumulation}" if job.grad_accumulation > 1 else "",
        "ckpt" if job.checkpointing else "",
        "nhwc" if job.channels_last else "",
        job.loss if job.loss != usual.loss else "",
        job.input_dtype if job.input_dtype != usual.input_dtype else "",
    ]
    return "+".join(word for word in words if word)


def remembered_files() -> List[str]:
    """The user's own file, and the one that the site's collector keeps for them."""
    from slurm_gpumem.formats import remembered

    files = [str(remembered.own_file())]
    if os.environ.get("GPUMEM_REMEMBERED"):
        return files
    # A wrong file is reported where the configuration is loaded; it must not keep anybody from estimating.
    folder = read_file(site_config_path(), (ACCOUNTING,)).table(ACCOUNTING).get("dir")
    if folder:
        files.append(os.path.join(folder, str(os.geteuid()), remembered.NAME))
    return files


def _scaled(parts: Mapping[str, int], peak: int) -> Dict[str, int]:
    """The parts with those that are least certain stretched or shrunk, so that they sum to the peak."""
    sure = ("weights", "gradients", "optimizer", "context")
    fixed = {name: size if name in sure else 0 for name, size in parts.items()}
    if sum(fixed.values()) >= peak or sum(parts.values()) == sum(fixed.values()):
        fixed = dict.fromkeys(parts, 0)
    loose = {name: size - fixed[name] for name, size in parts.items()}
    room, total = peak - sum(fixed.values()), sum(loose.values()) or 1
    scaled = {name: fixed[name] + size * room // total for name, size in loose.items()}
    scaled["activations"] += peak - sum(scaled.values())
    return scaled
