"""The driver's own limit: what all processes of a job's cgroup may hold of a GPU, with or without MPS.

From driver 615 on; off unless the site sets `node.driver_limit`. Built from NVIDIA's documentation (NVML 615,
"MPS v3 Memory Partitioning") and not run on hardware. The limit is on Slurm's cgroup of the job, which exists
from the job's first step on: the sampler sets it as soon as the cgroup is there and Slurm has said how many
shards the job has. Slurm removes the cgroup with the last step, and the limit goes with it.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.node import processes
from slurm_gpumem.node.gpus import is_instance
from slurm_gpumem.node.jobs import NodeJob
from slurm_gpumem.node.log import ProblemLog, log
from slurm_gpumem.node.nvml import WHY_NO_LIMIT, Nvml, NvmlError
from slurm_gpumem.node.sampler.cpu_clock import CGROUPS
from slurm_gpumem.node.sampler.pid_to_job import job_cgroups, step_daemons
from slurm_gpumem.node.sampler.usage import JobUsage

_AGAIN_S = 60.0
"""A job whose limit could not be set is tried again after this time."""
_NOTE = "no limit by the driver: "


class _Wanted(NamedTuple):
    """One job's limit, on each of its GPUs."""

    gpus: Tuple[str, ...]
    mib: int


class _Limited(NamedTuple):
    """A limit that was set, and on which cgroup: another one may have the same name later."""

    wanted: _Wanted
    cgroup: Path
    inode: int


class DriverLimits:
    """Keeps the jobs' cgroups limited to their shards."""

    def __init__(
        self, root: Path, problems: ProblemLog, nvml: Callable[[], Nvml] = Nvml, cgroups: Path = CGROUPS
    ) -> None:
        self._root = root
        self._problems = problems
        self._open = nvml
        self._nvml: Optional[Nvml] = None
        self._cgroups = cgroups
        self._limited: Dict[int, _Limited] = {}
        self._not_before: Dict[int, float] = {}

    def keep(self, jobs: Mapping[int, NodeJob], usage: Mapping[int, JobUsage]) -> None:
        """Set what is missing, change what is another by now, take away what no job here has any more."""
        wanted = {
            job_id: limit
            for job_id, job in jobs.items()
            if (limit := _wanted(job, usage[job_id])) is not None
        }
        for job_id in [job_id for job_id in self._limited if job_id not in wanted]:
            self._lift(self._limited.pop(job_id))
        self._not_before = {job_id: at for job_id, at in self._not_before.items() if job_id in wanted}
        missing = {
            job_id: limit
            for job_id, limit in wanted.items()
            if not self._holds(job_id, limit) and time.monotonic() >= self._not_before.get(job_id, 0.0)
        }
        try:
            steps = step_daemons(missing) if missing else {}
        except TimeoutError as error:
            self._problems.report("driver-limit", str(error))
            return
        sluids = {job.sluid: job_id for job_id, job in jobs.items() if job.sluid}
        for job_id, pids in steps.items():
            try:
                self._limit(job_id, missing[job_id], self._cgroup_of(job_id, pids, sluids))
            except FileNotFoundError:
                continue  # the step has ended meanwhile, and its cgroup with it
            except (OSError, NvmlError) as error:
                why = WHY_NO_LIMIT.get(error.code, "") if isinstance(error, NvmlError) else ""
                text = f"{_NOTE}{why or error}"
                self._not_before[job_id] = time.monotonic() + _AGAIN_S
                self._problems.report("driver-limit", text)
                usage[job_id].notes.add(text)
            else:
                usage[job_id].notes = {note for note in usage[job_id].notes if not note.startswith(_NOTE)}

    def _holds(self, job_id: int, wanted: _Wanted) -> bool:
        limited = self._limited.get(job_id)
        return limited is not None and limited.wanted == wanted and _inode(limited.cgroup) == limited.inode

    def _cgroup_of(self, job_id: int, pids: List[int], sluids: Mapping[str, int]) -> Path:
        """The job's cgroup by its slurmstepd, which is root's: users name theirs as they like."""
        if not (self._cgroups / "cgroup.controllers").exists():
            raise OSError(f"{self._cgroups} is not cgroup version 2")
        for pid in pids:
            text = processes.cgroup_text(pid)
            unified = "\n".join(line for line in text.splitlines() if line.startswith("0::"))
            for path in job_cgroups(unified, job_id, sluids):
                if ".." not in path.split("/"):
                    return self._cgroups / path.lstrip("/")
            if unified:
                raise OSError("Slurm has no cgroup for the job (ProctrackType=proctrack/cgroup makes one)")
        raise FileNotFoundError

    def _limit(self, job_id: int, wanted: _Wanted, cgroup: Path) -> None:
        inode = _inode(cgroup)
        if inode is None:
            raise FileNotFoundError
        if self._nvml is None:
            self._nvml = self._open()
        self._enable(cgroup)
        for uuid in wanted.gpus:
            self._nvml.limit_memory(uuid, str(cgroup), wanted.mib)
            if self._nvml.memory_limit_mib(uuid, str(cgroup)) is None:
                raise OSError(f"the driver took the limit of {uuid} and reports none")
        self._limited[job_id] = _Limited(wanted, cgroup, inode)
        log(self._root, f"job {job_id}: the driver limits {cgroup} to {wanted.mib} MiB of each of its GPUs")

    def _enable(self, cgroup: Path) -> None:
        """Where the kernel counts device memory (6.14 and later), it does so in groups whose parents ask.

        Slurm asks for the controllers that it uses itself. Without dmem the driver counts by its own means.
        """
        if "dmem" not in (self._cgroups / "cgroup.controllers").read_text().split():
            return
        above = [folder for folder in cgroup.parents if folder.is_relative_to(self._cgroups)]
        for folder in reversed(above):
            control = folder / "cgroup.subtree_control"
            if "dmem" not in control.read_text().split():
                control.write_text("+dmem")

    def _lift(self, limited: _Limited) -> None:
        """Mostly the cgroup is gone by now; a job that has a whole GPU after all keeps it."""
        if self._nvml is None or _inode(limited.cgroup) != limited.inode:
            return
        for uuid in limited.wanted.gpus:
            with contextlib.suppress(NvmlError):  # the cgroup has gone since, or the GPU has
                self._nvml.limit_memory(uuid, str(limited.cgroup), None)


def _wanted(job: NodeJob, usage: JobUsage) -> Optional[_Wanted]:
    """By Slurm's own count only: a process that sees too small a GPU when it starts goes on believing it."""
    gpus = tuple(uuid for uuid in job.gpus if not is_instance(uuid))
    if not usage.verified or usage.shards is None or usage.limit_mib is None or not gpus:
        return None
    return _Wanted(gpus, usage.limit_mib)


def _inode(path: Path) -> Optional[int]:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None
