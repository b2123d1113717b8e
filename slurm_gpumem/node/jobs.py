"""The shared jobs that are on this node: one root-owned file each, which is also the reference count.

How many jobs of a user are on a GPU is counted from these files each time it is needed, so that
nothing can drift: a crash leaves a file too many at worst, and the sampler asks Slurm about those.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from slurm_gpumem.files import read_json, remove, write_json
from slurm_gpumem.formats.comment import CommentRecord, format_record, parse_word
from slurm_gpumem.formats.job_record import MPS, MPS_SHARED
from slurm_gpumem.formats.task_file import read_task_run

SHARED_UID = 0
"""The daemon that serves all users is root's; a job of root's own is served by it in either mode."""
_JOB_ID = re.compile(r"[0-9]{1,10}")
_SLUID = re.compile(r"[A-Za-z0-9]{4,32}")
_MOST_READ_BEFORE = 1024
_read_before: Dict[str, Tuple[Tuple[int, ...], Optional[NodeJob]]] = {}
"""By path: which file was read there, and what was in it. In a burst each hook looks at all jobs."""


def _seconds_since_boot() -> float:
    """The same clock in every process, and nobody can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class NodeJob:
    """One shared job on this node, as the prolog saw it."""

    job_id: int
    uid: int
    user: str
    gpus: Tuple[str, ...]
    """UUIDs, in Slurm's order."""
    mode: str
    """MPS, MPS_SHARED, TIMESLICE, MIG, or WITHOUT_MPS: to be limited, and not."""
    started: float
    """Unix time of the prolog."""
    restarts: int = 0
    cluster: str = ""
    partition: str = ""
    sluid: str = ""
    claim: Optional[CommentRecord] = None
    """The record of the job's comment; its owner could have written anything there."""
    notes: Tuple[str, ...] = ()
    one_log: bool = False
    """Whether its output and its errors are in one file: then its task epilog asks Slurm for no other."""
    booted_s: float = field(default_factory=_seconds_since_boot)
    """Seconds since boot at `started`."""

    def now(self) -> float:
        """Unix time by the clock as it was at the start: a clock that was set since changes no duration."""
        passed = _seconds_since_boot() - self.booted_s
        return round(self.started + passed if passed >= 0 else time.time(), 3)

    @property
    def uses_mps(self) -> bool:
        """Whether an MPS daemon serves it."""
        return self.mode in (MPS, MPS_SHARED)

    @property
    def daemon_uid(self) -> int:
        """Whose daemon that is; jobs with the same one share the fate of its server."""
        return SHARED_UID if self.mode == MPS_SHARED else self.uid

    @property
    def claimed(self) -> CommentRecord:
        """The claim, or one that says nothing."""
        return self.claim or CommentRecord()


class RunFolder:
    """The paths below /run/gpumem."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.jobs = root / "jobs"
        self.mps = root / "mps"
        self.locks = root / "locks"
        self.live = root / "live.json"
        """What the sampler saw last."""
        self.own = root / "own"
        """What users may read of their own jobs, a file for each."""
        self.counters = root / "counters.json"
        """What the samplers since the node's start have counted."""
        self.inbox = root / "inbox"
        """Where hooks leave their requests to the sampler; nobody else may look in."""
        self.suspects = root / "suspects"
        """Users whose jobs were hit by faults at a shared MPS server."""
        self.ended = root / "ended"
        """Closed records on their way to the spool."""
        self.unsettled = root / "unsettled"
        """Records that have come to the spool and lack Slurm's word on their end."""
        self.swept = root / "swept"
        """Its time is when records that were left open were last looked for."""
        self.records_lock = self.locks / "records"
        self.sampler_lock = self.locks / "sampler"
        self.sampler_start_lock = self.locks / "sampler-start"
        """Held from when a prolog starts a sampler, so that of many prologs at once one does."""
        self.end_socket = self.mps / "end.sock"
        """Where processes ask to leave their MPS server; below `mps`, which containers see."""

    def own_live(self, uid: int) -> Path:
        """What the sampler saw last of one user's jobs."""
        return self.own / f"{uid}.json"

    def daemon_lock(self, uuid: str, uid: int) -> Path:
        """Held while root talks to that user's daemon on that GPU; nobody else needs it."""
        return self.locks / f"{uuid}.{uid}"

    def door_lock(self, uuid: str) -> Path:
        """Held for a moment while it is set who may come to the shared daemon on that GPU."""
        return self.locks / f"{uuid}.door"

    def task_file(self, job_id: int) -> Path:
        """What the task prolog reads: for the shell, root-made, readable by the job's user."""
        return self.jobs / f"{job_id}.task"

    def clients_file(self, job_id: int) -> Path:
        """The job's processes at an MPS server: its task epilog waits for those that outlive its task."""
        return self.jobs / f"{job_id}.clients"

    def pipe(self, uuid: str, uid: int) -> Path:
        return self.mps / uuid / str(uid) / "pipe"

    def fault_note(self, uuid: str, uid: int) -> Path:
        """The first epilog that sees a user's MPS server faulted leaves it for the others."""
        return self.mps / uuid / str(uid) / "fault.json"

    def limit_note(self, uuid: str, uid: int) -> Path:
        """The default limit that the daemon there has been given, so that it need not be asked again."""
        return self.mps / uuid / str(uid) / "limit"

    def log(self, uuid: str, uid: int) -> Path:
        return self.mps / uuid / str(uid) / "log"

    def make(self) -> None:
        """Make the folders; root's own, passable for users, not listable where names matter."""
        modes = {self.own: 0o711, self.inbox: 0o700}
        for folder in (self.root, self.jobs, self.mps, self.locks, self.own, self.inbox):
            folder.mkdir(mode=modes.get(folder, 0o755), parents=True, exist_ok=True)
            # Made before us, by somebody else? Then we do not write there.
            if os.stat(folder, follow_symlinks=False).st_uid != os.geteuid():
                raise PermissionError(f"{folder} belongs to another user")


def valid_job_id(text: str) -> Optional[int]:
    """The number, when the text is nothing but one."""
    return int(text) if _JOB_ID.fullmatch(text) else None


def valid_sluid(text: str) -> str:
    """26.05's job name in cgroup paths; empty when it does not look like one."""
    return text if _SLUID.fullmatch(text) else ""


def put(folder: RunFolder, job: NodeJob) -> None:
    """The job is here from now on."""
    table = {**vars(job), "claim": None if job.claim is None else format_record(job.claim)}
    write_json(folder.jobs / f"{job.job_id}.json", table, mode=0o600)


def drop(folder: RunFolder, job_id: int, run: int = 0) -> None:
    """The job is gone; what its next run was told meanwhile stays."""
    if read_task_run(folder.task_file(job_id)) <= run:
        remove(folder.task_file(job_id))
    remove(folder.clients_file(job_id))
    remove(folder.jobs / f"{job_id}.json")


def get(folder: RunFolder, job_id: int) -> Optional[NodeJob]:
    """The job, when it is here."""
    return _job_from(read_json(folder.jobs / f"{job_id}.json"))


def all_jobs(folder: RunFolder) -> Tuple[NodeJob, ...]:
    """Every shared job that is here, by number."""
    try:
        with os.scandir(folder.jobs) as entries:
            found = [_known(entry) for entry in entries if _is_job_file(entry.name)]
    except OSError:
        return ()
    return tuple(sorted((job for job in found if job is not None), key=lambda job: job.job_id))


def _is_job_file(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")


def _known(entry: os.DirEntry[str]) -> Optional[NodeJob]:
    """The job in a file, which is read once: a file that is written again is another one."""
    try:
        about = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    stamp = (about.st_ino, about.st_mtime_ns, about.st_size)
    known = _read_before.get(entry.path)
    if known is None or known[0] != stamp:
        if len(_read_before) >= _MOST_READ_BEFORE:
            _read_before.clear()
        known = _read_before[entry.path] = (stamp, _job_from(read_json(Path(entry.path))))
    return known[1]


def users_of(folder: RunFolder, uuid: str, uid: int) -> Tuple[NodeJob, ...]:
    """The references that keep the MPS daemon of that user on a GPU alive."""
    return tuple(
        job for job in all_jobs(folder) if job.daemon_uid == uid and uuid in job.gpus and job.uses_mps
    )


def _job_from(table: Any) -> Optional[NodeJob]:
    if not isinstance(table, dict):
        return None
    try:
        claim = None if table["claim"] is None else parse_word(table["claim"])
        return NodeJob(
            **{**table, "claim": claim, "gpus": tuple(table["gpus"]), "notes": tuple(table["notes"])}
        )
    except (AttributeError, KeyError, TypeError):
        return None
