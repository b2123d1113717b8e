"""Time slots on the node: when a job's slot ends, and the signal before that (gpumem docs slots).

Only processes of the job that catch the signal get it: anything else would end of it. It carries a mark, so
that prolog/gpumem_end.c, which catches signals for programs that do not, lets it pass. Nobody is made to end:
a program that does not save runs on to its job's own time limit, and the job's record says so.
"""

from __future__ import annotations

import re
import signal
import time
from typing import Callable, Iterator, Mapping, Optional, Set, Tuple

from slurm_gpumem.node import processes
from slurm_gpumem.node.jobs import NodeJob
from slurm_gpumem.node.processes import Process
from slurm_gpumem.node.sampler.pid_to_job import Owners
from slurm_gpumem.node.sampler.usage import JobUsage

SIGNAL = signal.SIGUSR1
MARK = 0x510750
"""The value that goes with the signal; gpumem_end.c has the same."""
_FIRST_S, _KNOWN_S = 300, 60
"""Time to save at most before anything is known, and at least once it is; of a short slot a tenth."""
_LATE_S = 60.0
_RUNS_ON = "no checkpoint at the slot's end: it runs on to its own time limit"
_CATCHES = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)


def slot_of(job: NodeJob) -> Optional[Tuple[int, int]]:
    """Unix times of the slot's end and of when to save; None for a job without slots."""
    slot, took = job.claimed.slot, job.claimed.save
    if not slot:
        return None
    lead = min(_FIRST_S, slot / 10) if took is None else max(2 * took, min(_KNOWN_S, slot / 10))
    end = job.started + slot
    return round(end), round(end - min(lead, slot / 2))


class SlotSignals:
    """Tells each job once per run that its slot is about to end."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._told: Set[Tuple[int, int]] = set()

    def look(self, here: Mapping[int, NodeJob], usage: Mapping[int, JobUsage]) -> None:
        """Whoever's slot ends soon is told; of whoever goes on after it, that is noted."""
        now = time.time()
        for job_id, job in here.items():
            slot = slot_of(job)
            if slot is None or now < slot[1]:
                continue
            if (job_id, job.restarts) not in self._told:
                self._told.add((job_id, job.restarts))
                self._log(f"job {job_id}: its slot ends soon; {tell(job, here)} of its processes told")
            if now > slot[0] + min(_LATE_S, slot[0] - slot[1]):
                usage[job_id].notes.add(_RUNS_ON)


def tell(job: NodeJob, here: Mapping[int, NodeJob]) -> int:
    """Signal the job's processes that wait for it; how many there were."""
    owners = Owners()
    sluids = {other.sluid: other.job_id for other in here.values() if other.sluid}
    uids = {other.job_id: other.uid for other in here.values()}
    end, _ = slot_of(job) or (None, None)
    told = 0
    for one in _catching(job.uid):
        # What an earlier run of the job has left behind has another slot's end in its environment.
        its_end = processes.environment(one.pid).get("GPUMEM_SLOT_END", str(end))
        if its_end == str(end) and owners.job_of(one.pid, sluids, uids) == job.job_id:
            told += processes.send(one, SIGNAL, mark=MARK)
    return told


def _catching(uid: int) -> Iterator[Process]:
    """A user's processes that catch the signal."""
    for pid in processes.all_pids():
        if processes.uid_of(pid) != uid:
            continue
        caught, start = _CATCHES.search(processes.status_text(pid)), processes.start_of(pid)
        if start is not None and caught and int(caught[1], 16) >> (SIGNAL - 1) & 1:
            yield Process(pid, start)
