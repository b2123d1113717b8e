"""Whose process is it? From a pid to a Slurm job, by whatever the site has."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Container, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from slurm_gpumem.node import processes
from slurm_gpumem.node.jobs import NodeJob

_JOB = re.compile(r"job_([0-9]{1,10})")
_USERS_OWN = re.compile(r"/user\.slice/|/user@[0-9]+\.service")
_STEPD = re.compile(r"slurmstepd: \[([0-9]{1,10})\.")
_GENERATIONS = 64
_MPS_SERVER = "nvidia-cuda-mps-server"
_CLOCK_GRAIN_S = 0.02
_CHECK_AGAIN = 10
"""A known process is checked again only after this many rounds: MPS servers stay what they are."""


def job_in_cgroup(text: str, sluids: Mapping[str, int]) -> Optional[int]:
    """The job of a /proc/PID/cgroup: v1, v2, and from 26.05 on by SLUID instead of number.

    v1: 4:memory:/slurm/uid_1000/job_42/step_batch/task_0
    v2: 0::/system.slice/slurmstepd.scope/job_42/step_batch/user/task_0
    """
    return next((job for job, _ in _jobs_in(text, sluids)), None)


def job_cgroups(text: str, job_id: int, sluids: Mapping[str, int]) -> Iterator[str]:
    """The job's own cgroups in the text of one of its processes: "/system.slice/slurmstepd.scope/job_42"."""
    return (path for job, path in _jobs_in(text, sluids) if job == job_id)


def _jobs_in(text: str, sluids: Mapping[str, int]) -> Iterator[Tuple[int, str]]:
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        # Below their own slice users make and name cgroups as they like.
        if "slurm" not in path or _USERS_OWN.search(path):
            continue
        # From the top: what is further down may be the job's own making.
        parts = path.split("/")
        for place, part in enumerate(parts, start=1):
            match = _JOB.fullmatch(part)
            job = int(match[1]) if match else sluids.get(part.removeprefix("job_"))
            if job is not None:
                yield job, "/".join(parts[:place])
                break


def job_of_step(pid: int) -> Optional[int]:
    """The job that this slurmstepd runs a step of; None for another process.

    Anybody can take its title, and a program like su then runs as root: so root (or we) must have started it.
    """
    match = _STEPD.match(processes.command_line(pid))
    return int(match[1]) if match and processes.real_uid_of(pid) in (0, os.geteuid()) else None


def step_daemons(jobs: Container[int]) -> Dict[int, List[int]]:
    """The slurmstepds of these jobs; TimeoutError when the search takes too long."""
    found: Dict[int, List[int]] = {}
    for pid in processes.named("slurmstepd", os.geteuid()):
        job = job_of_step(pid)
        if job is not None and job in jobs:
            found.setdefault(job, []).append(pid)
    return found


class Owners:
    """pid → job, remembered for as long as the process lives."""

    def __init__(self) -> None:
        self._known: Dict[int, Tuple[int, Optional[int], int]] = {}

    def job_of(self, pid: int, sluids: Mapping[str, int], uids: Mapping[int, int]) -> Optional[int]:
        """The job; `uids` says whose the jobs here are, to check what a process says of itself."""
        known_start, job, rounds = self._known.get(pid, (None, None, 0))
        if known_start is not None and rounds % _CHECK_AGAIN:
            # In the list without a break since the last look: no other process can have got its number.
            self._known[pid] = (known_start, job, rounds + 1)
            return job
        start = processes.start_of(pid)
        if start is None:
            return None
        if known_start == start and job is not None:
            self._known[pid] = (start, job, rounds + 1)
            return job
        job = _from_cgroup(pid, sluids)
        if job is None:
            job = _from_ancestors(pid, uids)
        if job is None:
            job = _from_environment(pid, uids)
        self._known[pid] = (start, job, 1)
        return job

    def keep_only(self, pids: frozenset[int]) -> None:
        """Forget processes that are gone."""
        for pid in [pid for pid in self._known if pid not in pids]:
            del self._known[pid]


def is_mps_server(pid: int, mps_control: str) -> bool:
    """Whether it serves MPS clients, and so computes nothing of its own."""
    folders = (Path(mps_control).parent, Path(os.path.realpath(mps_control)).parent, Path("/usr/bin"))
    return any(processes.runs(pid, folder / _MPS_SERVER) for folder in folders)


def job_of_user(pid: int, uuid: str, here: Iterable[NodeJob], mps_control: str) -> Optional[int]:
    """For a process on a GPU that hides its job: its user's job that was the last to come before it did.

    One on that GPU goes first. What root runs belongs to no job, nor does a user's MPS server.
    """
    start, uid = processes.start_of(pid), processes.real_uid_of(pid)
    if start is None or not uid or is_mps_server(pid, mps_control):
        return None
    came = start / os.sysconf("SC_CLK_TCK")
    mine = (job for job in here if job.uid == uid and job.booted_s <= came + _CLOCK_GRAIN_S)
    best = max(mine, key=lambda job: (uuid in job.gpus, job.booted_s), default=None)
    return None if best is None else best.job_id


def _from_cgroup(pid: int, sluids: Mapping[str, int]) -> Optional[int]:
    return job_in_cgroup(processes.cgroup_text(pid), sluids)


def _from_ancestors(pid: int, uids: Mapping[int, int]) -> Optional[int]:
    """By the slurmstepd above it, whose job must also be the user's."""
    parent: Optional[int] = pid
    for _ in range(_GENERATIONS):
        parent = None if parent is None else processes.parent_of(parent)
        if not parent or parent == 1:
            return None
        job = job_of_step(parent)
        if job is not None:
            return job if uids.get(job, processes.real_uid_of(pid)) == processes.real_uid_of(pid) else None
    return None


def _from_environment(pid: int, uids: Mapping[int, int]) -> Optional[int]:
    """What the process says itself; believed only of its own user's jobs on this node."""
    text = processes.environment(pid).get("SLURM_JOB_ID", "")
    job = int(text) if text.isdigit() and len(text) <= 10 else None
    return job if job is not None and uids.get(job) == processes.real_uid_of(pid) else None
