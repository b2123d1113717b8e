"""What recovery asks of Slurm and tells it: one job's state, the site's, four changes.

Jobs are named as scontrol takes them, "4711" or "4711_3": the number alone of an array task can
be that of its whole array. Columns of squeue have fixed widths, so that no name or comment can
pose as another field.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.comment import END_PREFIX, REQUEUED_HELD
from slurm_gpumem.slurm.client import run
from slurm_gpumem.slurm.nodes import Version, parse_gres, units_by_type
from slurm_gpumem.submission.ladder import Held

NAME = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10})?")
_FAILED_REASONS = ("NonZeroExitCode", "RaisedSignal", "JobLaunchFailure")
"""JobLaunchFailure is what 22.05 says of a batch script that a signal ended."""
_COLUMNS = (
    ("JobArrayID", 32), ("State", 16), ("Reason", 40), ("RestartCnt", 8), ("Requeue", 8), ("BatchFlag", 8),
    ("exit_code", 12), ("HetJobID", 12), ("PriorityLong", 24), ("Nice", 16), ("UserID", 16),
    ("Partition", 400), ("tres-per-node", 400), ("Comment", 1100),
)  # fmt: skip
_FORMAT = ",".join(f"{name}:{width}" for name, width in _COLUMNS)
_TIMEOUT_S = 5.0


class Job(NamedTuple):
    """A job as Slurm has it now."""

    name: str
    """As scontrol takes it."""
    state: str
    reason: str
    restarts: int
    may_requeue: bool
    batch: bool
    status: str
    """How its last run ended, as "1:0": exit code and signal."""
    het: bool
    priority: int
    nice: int
    uid: int
    partitions: Tuple[str, ...]
    request: str
    """Its --gres, as Slurm shows it: "gres:shard:12" or "gres/shard:12"."""
    comment: str

    @property
    def ended(self) -> bool:
        """Whether its last run failed and nobody has requeued it yet."""
        return self.state in ("FAILED", "COMPLETING") and self.reason.startswith(_FAILED_REASONS)

    @property
    def held(self) -> bool:
        """Whether it is requeued and held."""
        return self.priority == 0 and self.reason == REQUEUED_HELD and self.state in ("PENDING", "COMPLETING")

    @property
    def waiting(self) -> bool:
        """Whether it is requeued and released."""
        return self.priority > 0 and self.state in ("PENDING", "COMPLETING") and not self.ended


class Site(NamedTuple):
    """What recovery must know of the cluster."""

    version: Version
    requeues: bool
    """JobRequeue: whether jobs may be requeued unless they say otherwise."""
    state: Optional[Path]
    """StateSaveLocation, where SlurmUser may write."""


def job_name(env: Mapping[str, str]) -> Optional[str]:
    """The job of a hook's environment, as scontrol takes it; None when that is no job."""
    name = env.get("SLURM_JOB_ID", "")
    if env.get("SLURM_ARRAY_TASK_ID"):
        name = f"{env.get('SLURM_ARRAY_JOB_ID', '')}_{env['SLURM_ARRAY_TASK_ID']}"
    return name if NAME.fullmatch(name) else None


class Controller:
    """Slurm's commands, each with a time limit; SlurmError when one fails."""

    def __init__(self, env: Optional[Mapping[str, str]] = None) -> None:
        self._env = env

    def job(self, name: str) -> Optional[Job]:
        """The job as it is now; None when Slurm has forgotten it."""
        answer = self._squeue("-j", name, "-t", "all")
        return next((job for job in answer if job.name == name or job.het), None)

    def stdout_of(self, name: str) -> str:
        """Where its standard output goes; "" when Slurm does not say. Only for the job's own user."""
        text = self._run("scontrol", "-o", "show", "job", name)
        found = re.findall(r" StdOut=(.+?)(?= [A-Z]\w*=|\s*$)", text, re.MULTILINE)
        return found[-1] if found and os.path.isabs(found[-1]) else ""

    def site(self) -> Site:
        """Version and settings of the running controller."""
        text = self._run("scontrol", "show", "config")
        fields = dict(re.findall(r"^(\w+) *= (.*)$", text, re.MULTILINE))
        version = re.match(r"([0-9]+)\.([0-9]+)\.([0-9]+)", fields.get("SLURM_VERSION", ""))
        if version is None:
            raise SlurmError("scontrol show config: tells no version")
        state = fields.get("StateSaveLocation", "")
        return Site(
            (int(version[1]), int(version[2]), int(version[3])),
            fields.get("JobRequeue", "1").strip() != "0",
            Path(state) if os.path.isabs(state) else None,
        )

    def units_per_gpu(self, partitions: Tuple[str, ...], gres: str) -> Dict[Optional[str], int]:
        """Shards (or mps units) of one GPU by its type, the most that any node has, in these partitions."""
        text = self._run("sinfo", "-h", "-p", ",".join(partitions), "-o", "%G")
        found: Dict[Optional[str], int] = {}
        for line in text.splitlines():
            for kind, units in units_by_type(line, gres).items():
                found[kind] = max(units, found.get(kind, 0))
        return found

    def requeue_held(self, name: str) -> None:
        """Back into the queue, held: nothing can start it before it is changed."""
        self._run("scontrol", "requeuehold", name)

    def update(self, name: str, **fields: str) -> None:
        """Change several fields in one request: all of them, or none."""
        self._run("scontrol", "update", f"JobId={name}", *(f"{key}={value}" for key, value in fields.items()))

    def release(self, name: str) -> None:
        """Let it be scheduled."""
        self._run("scontrol", "release", name)

    def cancel(self, name: str) -> None:
        """End it for good."""
        self._run("scancel", name)

    def left_over(self) -> List[str]:
        """Jobs that a recovery may have left half done: requeued and held, or failed with our word on it."""
        pending = self._run("squeue", "-h", "-a", "-t", "PENDING", "-o", "%i|%r")
        failed = self._run("squeue", "-h", "-a", "-t", "FAILED", "-o", "%i|%k")
        wanted = [
            line.partition("|")[0] for line in pending.split("\n") if line.endswith(f"|{REQUEUED_HELD}")
        ]
        wanted += [line.partition("|")[0] for line in failed.split("\n") if f" {END_PREFIX}" in line]
        return [name for name in wanted if NAME.fullmatch(name)]

    def _squeue(self, *options: str) -> List[Job]:
        text = self._run("squeue", "-h", "-a", *options, "-O", _FORMAT)
        return [job for job in map(parse_job, text.split("\n")) if job is not None]

    def _run(self, *argv: str) -> str:
        return run(argv, timeout_s=_TIMEOUT_S, env=self._env)


def parse_job(line: str) -> Optional[Job]:
    """One line of squeue in our columns; None for one that is none."""
    cells: Dict[str, str] = {}
    at = 0
    for name, width in _COLUMNS:
        cells[name] = line[at : at + width].strip()
        at += width
    number = re.fullmatch(r"([0-9]+(?:_[0-9]+)?)(?:\+[0-9]+)?", cells["JobArrayID"])
    if number is None or not cells["UserID"].isdigit():
        return None
    return Job(
        name=number[1],
        state=cells["State"],
        reason=cells["Reason"],
        restarts=_number(cells["RestartCnt"]),
        may_requeue=cells["Requeue"] == "1",
        batch=cells["BatchFlag"] == "1",
        status=_status(cells["exit_code"]),
        het=cells["HetJobID"] not in ("", "N/A", "0"),
        priority=_number(cells["PriorityLong"]),
        nice=_number(cells["Nice"]),
        uid=int(cells["UserID"]),
        partitions=tuple(cells["Partition"].split(",")),
        request=cells["tres-per-node"],
        comment=cells["Comment"],
    )


def held_by(request: str) -> Optional[Held]:
    """The GPU part of a request; None when it has none, or several."""
    parts = [entry for entry in parse_gres(request) if entry[0] in ("gpu", "shard", "mps") and entry[2]]
    return Held(*parts[0]) if len(parts) == 1 else None


def replaced(request: str, gres: str) -> str:
    """The value of Gres= that puts `gres` in the place of the GPU part and keeps the rest."""
    items = [re.sub(r"^gres[:/]", "", item.strip()) for item in request.split(",") if item.strip()]
    return ",".join(
        gres if re.match(r"(?:gpu|shard|mps)(?:[:=]|$)", item) else item.replace("=", ":") for item in items
    )


def _status(text: str) -> str:
    """ "0:6" as 24.11 writes it; 22.05 writes the number that wait() gave."""
    if text.isdigit():
        return f"{int(text) >> 8}:{int(text) & 127}"
    return text


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else 0
