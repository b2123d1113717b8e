"""What a job asks for, by estimator: MiB on each GPU, a whole GPU, or nothing that anybody knows."""

from __future__ import annotations

from math import ceil
from typing import Dict, List, Optional, Protocol, Sequence, Tuple

from slurm_gpumem.errors import UnknownNameError
from slurm_gpumem.simulation.gpu_state import slices_for, speed_in
from slurm_gpumem.simulation.types import MIG, WHOLE, Setup, SimJob
from slurm_gpumem.units import ceil_div
from slurm_gpumem.utilization import interference
from slurm_gpumem.utilization.budget import share_for
from slurm_gpumem.utilization.interference import PER_USER, JobLoad

# How fast the jobs of one GPU run, by the way in which it is shared.


WAYS = {"mps": interference.PER_USER, "mps-shared": interference.SHARED, "timeslice": interference.TIMESLICE}


class Resident(interference.Sharer, Protocol):
    """A job on a GPU, as far as its speed depends on it."""

    load: JobLoad
    slices: int
    """Of the memory, under MIG."""


def speeds(mode: str, jobs: Sequence[Resident]) -> List[float]:
    """For each job on a GPU, its speed relative to having the GPU to itself."""
    if mode == MIG:
        return [speed_in(job.slices, job.load) for job in jobs]
    return interference.speeds(WAYS.get(mode, interference.PER_USER), jobs)


ORACLE, NONE, REMEMBERED = "oracle", "none", "remembered"
ESTIMATORS: Tuple[str, ...] = (
    ORACLE, NONE, "horus", "faketensor", "gpumemnet", "gpumemnet-refit", "text", "trace", REMEMBERED,
)  # fmt: skip
"""All but the first two and the last are columns of a trace."""
_REMEMBERED_RESERVE = 0.02
"""Above the largest peak so far, as the estimator `remembered` has it."""


class Asker:
    """Requests of one simulation; `remembered` learns from the jobs that ended in it."""

    def __init__(self, setup: Setup) -> None:
        if setup.estimator not in ESTIMATORS:
            raise UnknownNameError("estimator", setup.estimator, list(ESTIMATORS))
        self._setup = setup
        self._peaks: Dict[Tuple[str, str], Tuple[int, int]] = {}
        self._sizes = {size for layout in setup.mig for size in layout}
        self._way = WAYS.get(setup.mode, PER_USER)

    def ask(self, job: SimJob) -> Optional[int]:
        """MiB on each GPU; WHOLE; None where nothing is known and the policy tries anyway."""
        policy, memory = self._setup.policy, self._setup.fleet.memory_mib
        if policy.whole or (policy.granted and job.gpus > 1):
            # A share is a part of one GPU: jobs on several get them to themselves.
            return WHOLE
        estimated = self._estimated(job)
        if estimated is None:
            return WHOLE if policy.granted else None
        if not policy.granted:
            return min(estimated, memory)
        return self.granted(job, estimated)

    def granted(self, job: SimJob, mib: int) -> int:
        """A request in whole shards (or a MIG instance), with the share that its activity takes."""
        memory, limit = self._setup.fleet.memory_mib, self._setup.policy.by_activity
        if limit:
            mib = max(mib, ceil(share_for(job.load, limit, limit, self._way).share * memory))
        if self._setup.mode == MIG:
            mib = slices_for(mib, memory, self._sizes) * memory // 8
        else:
            mib = ceil_div(mib, self._setup.shard_mib) * self._setup.shard_mib
        return WHOLE if mib >= memory else mib

    def learn(self, job: SimJob) -> None:
        """A job has ended well: its peak is known from now on."""
        if self._setup.estimator == REMEMBERED:
            least, most = self._peaks.get((job.user, job.name), (job.peak_mib, job.peak_mib))
            self._peaks[job.user, job.name] = (min(least, job.peak_mib), max(most, job.peak_mib))

    def _estimated(self, job: SimJob) -> Optional[int]:
        name = self._setup.estimator
        if name == NONE:
            return None
        if name == ORACLE:
            return job.peak_mib
        if name == REMEMBERED:
            found = self._peaks.get((job.user, job.name))
            if found is not None:
                least, most = found
                return most + max(most - least, ceil(most * _REMEMBERED_RESERVE))
            name = "text"
        return job.estimates.get(name)
