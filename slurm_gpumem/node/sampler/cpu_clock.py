"""The CPU time that jobs have spent: by their cgroup, else by their processes. Asks Slurm nothing.

Slurm's cgroup of a job counts all that ran in it, whoever its parent is. Where a site has none, the job's
processes are added up, each with its children that ended; those that left the job's process tree count as
long as they live. A job's cgroup is found by its slurmstepd, which is root's: users name theirs as they like.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Mapping, Optional

from slurm_gpumem.node import processes
from slurm_gpumem.node.jobs import NodeJob
from slurm_gpumem.node.sampler.pid_to_job import Owners, job_cgroups, step_daemons

CGROUPS = Path("/sys/fs/cgroup")
_READ_LIMIT = 4096
_SEARCH_S = 0.25
"""For all processes of the jobs' users: more would keep the sampler from its GPUs."""
_PART_OF_TIME = 20
"""After a search that took longer, none for this many times as long."""
_TICKS = os.sysconf("SC_CLK_TCK")
_USAGE = re.compile(rb"^usage_usec ([0-9]{1,19})$", re.MULTILINE)


class CpuClock:
    """Where each job's time is read, remembered for as long as that works."""

    def __init__(self, cgroups: Path = CGROUPS) -> None:
        self._cgroups = cgroups
        self._known: Dict[int, Path] = {}
        self._owners = Owners()
        self._not_before = float("-inf")

    def read(self, jobs: Iterable[NodeJob]) -> Dict[int, float]:
        """CPU seconds so far by job; without those of which nothing can be known now."""
        wanted = {job.job_id: job for job in jobs}
        self._known = {job_id: path for job_id, path in self._known.items() if job_id in wanted}
        found = {
            job_id: spent for job_id, path in self._known.items() if (spent := spent_in(path)) is not None
        }
        others = {job_id: job for job_id, job in wanted.items() if job_id not in found}
        if not others or time.monotonic() < self._not_before:
            return found
        began = time.monotonic()
        try:
            steps = step_daemons(others)
            found.update(self._by_cgroup(steps, others))
            left = {job_id: job for job_id, job in others.items() if job_id not in found}
            if left:
                found.update(self._by_processes(steps, left, began + _SEARCH_S))
        except TimeoutError:
            self._not_before = time.monotonic() + _PART_OF_TIME * (time.monotonic() - began)
        return found

    def _by_cgroup(self, steps: Mapping[int, List[int]], jobs: Mapping[int, NodeJob]) -> Dict[int, float]:
        sluids = {job.sluid: job.job_id for job in jobs.values() if job.sluid}
        found: Dict[int, float] = {}
        for job_id, pids in steps.items():
            for path in (file for pid in pids for file in self._files(pid, job_id, sluids)):
                spent = spent_in(path)
                if spent is not None:
                    self._known[job_id], found[job_id] = path, spent
                    break
        return found

    def _files(self, pid: int, job_id: int, sluids: Mapping[str, int]) -> Iterator[Path]:
        """Where the job's time may be counted, by the cgroups of its slurmstepd."""
        text = processes.cgroup_text(pid)
        for path in job_cgroups(text, job_id, sluids):
            # Relative to another root than ours: this is some container's view.
            if ".." in path.split("/"):
                continue
            below = path.lstrip("/")
            yield self._cgroups / below / "cpu.stat"
            for controller in ("cpuacct", "cpu,cpuacct"):
                yield self._cgroups / controller / below / "cpuacct.usage"

    def _by_processes(
        self, steps: Mapping[int, List[int]], jobs: Mapping[int, NodeJob], deadline: float
    ) -> Dict[int, float]:
        sluids = {job.sluid: job.job_id for job in jobs.values() if job.sluid}
        uids = {job_id: job.uid for job_id, job in jobs.items()}
        theirs, seen, ticks = set(uids.values()), set(), dict.fromkeys(jobs, 0)
        stepds = {pid for pids in steps.values() for pid in pids}
        for pid in processes.all_pids():
            if time.monotonic() > deadline:
                raise TimeoutError
            if pid not in stepds and processes.uid_of(pid) in theirs:
                seen.add(pid)
                job_id = self._owners.job_of(pid, sluids, uids)
                if job_id in ticks:
                    ticks[job_id] += _ticks(pid, own=True)
        self._owners.keep_only(frozenset(seen))
        for job_id, pids in steps.items():
            if job_id in ticks:
                # What its tasks spent is the slurmstepd's as soon as it has seen their end.
                ticks[job_id] += sum(_ticks(pid, own=False) for pid in pids)
        return {job_id: spent / _TICKS for job_id, spent in ticks.items() if job_id in steps}


def spent_in(path: Path) -> Optional[float]:
    """CPU seconds of a cgroup: of version 2 in cpu.stat, of version 1 in cpuacct.usage; None without it."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.read(_READ_LIMIT) or b""
    except OSError:
        return None
    if path.name == "cpu.stat":
        match = _USAGE.search(data)
        return int(match[1]) / 1e6 if match else None
    return int(data) / 1e9 if data.strip().isdigit() else None


def _ticks(pid: int, *, own: bool) -> int:
    """Its time and that of its children that ended, or only the latter."""
    fields = processes.stat_fields(pid)
    return 0 if fields is None else sum(map(int, fields[11:15] if own else fields[13:15]))
