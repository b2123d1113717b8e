"""CPUs and host memory that go with a part of a GPU: in proportion to it, or fewer CPUs by earlier runs."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple, Optional, Sequence

from slurm_gpumem.config.load import SharingPolicy
from slurm_gpumem.formats.remembered import CpuRun
from slurm_gpumem.slurm.submit.gpu_options import Wishes, nodes_of, tasks_on_node
from slurm_gpumem.submission.share.request import GpuKind, GpuRequest

_CPU_OPTIONS = ("cpus-per-task", "mincpus")
_TASK_OPTIONS = ("ntasks", "ntasks-per-node")
"""On one node they say how many CPUs; on several, where a share has one task, how many ranks."""
_MARGIN = 1.25
"""On what earlier runs used. A choice, not a measurement: cores too few make a job wait for its input."""
_ALL_USED = 0.85
"""A run that used this part of its CPUs might have used more, had it held more. Above 1 / _MARGIN, so that a
job whose CPUs were lowered by its use is not taken for one that lacks some."""


class HostShare(NamedTuple):
    """CPUs and host memory that go with a part of a GPU; 0 for what is not asked."""

    cpus: int
    memory_mib: int
    cpus_by_share: int = 0
    """The CPUs in proportion to its part of the GPU."""
    cpus_used: Optional[float] = None
    """What earlier runs used, where that lowered the CPUs."""


def names_cpus(options: Wishes) -> bool:
    """Whether the job's own options say how many CPUs it gets."""
    return options.any_of(*_CPU_OPTIONS, *(_TASK_OPTIONS if nodes_of(options) == 1 else ()))


def named_cpus(options: Wishes) -> Optional[int]:
    """How many CPUs on each node the job's own options say; None where they say nothing of a task's."""
    per_task = options.get("cpus-per-task") or ""
    return int(per_task) * tasks_on_node(options) if per_task.isdigit() else None


def host_share(
    request: GpuRequest,
    kinds: Sequence[GpuKind],
    policy: SharingPolicy,
    runs: Sequence[CpuRun] = (),
    named_cpus: Optional[int] = None,
) -> HostShare:
    """CPUs and host memory in proportion to the part of the GPU, on whichever kind it lands.

    The smallest proportion among the kinds, so that no node runs out of CPUs or memory before its GPUs are
    full; at least one core and `min_host_mib`. Fewer CPUs where `runs`, the
    job's earlier ones, used fewer. A job that names its CPUs has no more memory than goes with those.
    """
    takers = [kind for kind in kinds if kind.units >= request.units and kind.is_type(request.gpu_type)]
    if not (request.units or request.instance_mib) or not takers:
        return HostShare(0, 0)
    wanted = cpus_wanted(runs)
    by_share, by_use, memory = [], [], []
    for kind in takers:
        part = request.units / kind.units if request.units else 1.0
        # Slurm gives whole cores: less than one core's threads would be rounded up anyway.
        cores = max(int(kind.cpus_per_gpu * part) // kind.threads_per_core, 1)
        proportion = cores * kind.threads_per_core
        by_share.append(proportion)
        enough = ceil((wanted or proportion) / kind.threads_per_core) * kind.threads_per_core
        by_use.append(min(proportion, enough))
        least = min(policy.min_host_mib, kind.host_mib_per_gpu // 4)
        of_memory = min(part, named_cpus / kind.cpus_per_gpu) if named_cpus else part
        memory.append(max(int(kind.host_mib_per_gpu * of_memory), least))
    share = HostShare(min(by_use), min(memory), min(by_share))
    if share.cpus < share.cpus_by_share:
        return share._replace(cpus_used=max(run.used for run in runs))
    return share


def cpus_wanted(runs: Sequence[CpuRun]) -> Optional[int]:
    """CPUs that are enough by earlier runs; None without any, and where those lacked some."""
    free = [run for run in runs if run.used < _ALL_USED * run.held]
    if not free:
        return None
    wanted = max(1, ceil(round(max(run.used for run in free) * _MARGIN, 6)))
    # One that held as many and used them all shows that they are not enough, whatever others say.
    return None if any(run.held >= wanted for run in runs if run not in free) else wanted
