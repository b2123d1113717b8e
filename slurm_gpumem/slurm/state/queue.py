"""Jobs as Slurm has them: what squeue and scontrol say of one job, of a node's, of the whole queue.

Jobs are named as scontrol takes them, "4711" or "4711_3": the number alone of an array task can
be that of its whole array. Columns of squeue have fixed widths, so that no name or comment can
pose as another field.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.slurm.client import SlurmClient
from slurm_gpumem.slurm.gres import shares

# The tasks of a job array, as --array names them.


_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_MOST = 1_000_000


def array_tasks(text: str) -> Tuple[int, ...]:
    """The tasks of "0-9", "1,3,5-7", "0-100:10%4", in order; UsageError where sbatch would refuse it."""
    found: List[int] = []
    for part in text.partition("%")[0].split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"--array={text}: {part!r} is not a task or a range like 0-9")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or step < 1 or (last - first) // step >= _MOST:
            raise UsageError(f"--array={text}: {part!r} is not a range of tasks")
        found += range(first, last + 1, step)
    return tuple(sorted(set(found)))


def tasks_text(tasks: Iterable[int]) -> str:
    """ "0-3,5" of 0, 1, 2, 3 and 5."""
    spans: List[List[int]] = []
    for number in sorted(set(tasks)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


# Slurm's names for a job's states, as squeue and sacct print them.

FINAL_CODES = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "DL": "DEADLINE", "F": "FAILED",
    "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PR": "PREEMPTED", "RV": "REVOKED", "TO": "TIMEOUT",
}  # fmt: skip
REQUEUED = "REQUEUED"
"""Of a run that was ended so that the job runs again."""
CODES = {**FINAL_CODES, "R": "RUNNING", "RQ": REQUEUED}
"""Short name → name, of the states that a report can show."""
FINAL = tuple(FINAL_CODES.values())
"""States of a job that ended for good."""
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
"""States of a job that is on no node."""


JOB_NAME = re.compile(r"[0-9]{1,10}(?:_[0-9]{1,10})?")
REQUEUED_IN_GRACE_TIME = (24, 5, 0)
"""From here on Slurm requeues a preempted job that ends in its grace time, too."""
REQUEUED_HELD = "job requeued in held state"
"""The reason that `scontrol requeuehold` leaves; a user's or an administrator's own hold has another."""
TIMEOUT_S = 5.0
_TASK = re.compile(r"([0-9]{1,10})_([0-9]{1,10})")
_FAILED_REASONS = ("NonZeroExitCode", "RaisedSignal", "JobLaunchFailure")
"""JobLaunchFailure is what 22.05 says of a batch script that a signal ended."""
_SAMPLED_COLUMNS = (
    "JobID:16 ,UserID:16 ,State:24 ,RestartCnt:8 ,NumCPUs:8 ,NumNodes:8 ,tres-per-node:128 ,JobArrayID:40 |"
)
"""Before the bar nothing is a user's own words."""
_JOB_COLUMNS = (
    ("JobArrayID", 32), ("State", 16), ("Reason", 40), ("RestartCnt", 8), ("Requeue", 8), ("BatchFlag", 8),
    ("exit_code", 12), ("HetJobID", 12), ("PriorityLong", 24), ("UserID", 16), ("JobID", 16),
    ("UserName", 64), ("Account", 128), ("QOS", 128), ("NumNodes", 8),
    ("TimeLimit", 16), ("TimeUsed", 16), ("Nice", 16),
    ("Partition", 400), ("tres-per-node", 400), ("Comment", 1100),
)  # fmt: skip
_JOB_FORMAT = ",".join(f"{name}:{width}" for name, width in _JOB_COLUMNS)
_PARTITION_WIDTH = 64
_TIME = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)")
_PREEMPTED = re.compile(r"\bPreemptTime=[0-9]")
_ADMIN_COMMENT = re.compile(r"^\s+AdminComment=(.*?) *$", re.MULTILINE)
_STDOUT = re.compile(r"^ *StdOut=(/.*)$", re.MULTILINE)


class SlurmJob(NamedTuple):
    """A job that Slurm has, as the sampler of its node needs it."""

    job_id: int
    uid: int
    shards: Optional[int]
    """Per node; None for a job without shared GPUs."""
    state: str
    restarts: int = 0
    array_job: Optional[int] = None
    """Of an array's task: the number of the array, and the task's in it."""
    array_task: Optional[int] = None
    cpus: Optional[int] = None
    """Its CPUs on its node; None for a job on several nodes, whose parts Slurm does not say here."""
    comment: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it ended for good; Slurm remembers it for a while (MinJobAge)."""
        return self.state in FINAL

    @property
    def is_here(self) -> bool:
        """Whether it is on its node, computing or not."""
        return not self.is_over and self.state not in WAITING

    def has_run(self, restarts: int) -> bool:
        """Whether that run of it is still on its node: a requeued job counts on while it is being ended."""
        return self.is_here and (self.restarts <= restarts or self.state == "COMPLETING")

    def end_of(self, restarts: int) -> str:
        """How that run of it ended; "" while Slurm does not say. The state is that of the latest run."""
        if self.restarts > restarts:
            return REQUEUED
        return self.state if self.restarts == restarts and self.is_over else ""


class Job(NamedTuple):
    """A job as Slurm has it now, as recovery needs it."""

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
    uid: int
    partitions: Tuple[str, ...]
    request: str
    """Its --gres, as Slurm shows it: "gres:shard:12" or "gres/shard:12"."""
    comment: str
    number: int = 0
    """Its own number, also of an array task; records of nodes are named by it."""
    user: str = ""
    account: str = ""
    qos: str = ""
    nodes: int = 1
    limit_min: Optional[int] = None
    """Its time limit; None without one."""
    used_s: int = 0
    """How long its last run has taken."""
    nice: int = 0

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


class QueuedJob(NamedTuple):
    """A pending or running job and what it asks for."""

    partition: str
    """Several, with commas between them, where the job may run in each."""
    tres: str


class EndedJob(NamedTuple):
    """A job that ran and is over."""

    name: str
    at: float
    """Unix time."""


def job_name(env: Mapping[str, str]) -> Optional[str]:
    """The job of a hook's environment, as scontrol takes it; None when that is no job."""
    name = env.get("SLURM_JOB_ID", "")
    if env.get("SLURM_ARRAY_TASK_ID"):
        name = f"{env.get('SLURM_ARRAY_JOB_ID', '')}_{env['SLURM_ARRAY_TASK_ID']}"
    return name if JOB_NAME.fullmatch(name) else None


def find_job(client: SlurmClient, name: str) -> Optional[Job]:
    """The job as it is now; None when Slurm has forgotten it."""
    argv = ["squeue", "-h", "-a", "-j", name, "-t", "all", "-O", _JOB_FORMAT]
    found = map(parse_job, client.run(argv, timeout_s=TIMEOUT_S).split("\n"))
    return next((job for job in found if job is not None and (job.name == name or job.het)), None)


def waiting_jobs(client: SlurmClient, names: Sequence[str]) -> Dict[str, str]:
    """Those of these jobs, arrays and tasks ("4711_3") that are pending, with the reason."""
    argv = ["squeue", "-h", "-a", "-t", "PENDING", "-o", "%F|%i|%r"]
    found: Dict[str, str] = {}
    for line in client.run(argv, timeout_s=TIMEOUT_S).split("\n"):
        number, shown, reason = [*line.split("|", 2), "", "", ""][:3]
        for name in names:
            if name in (number, shown) or _is_among(name, shown):
                found.setdefault(name, reason)
    return found


def _is_among(name: str, shown: str) -> bool:
    """Whether a task is one of those that squeue shows as "4711_[3-5,9%2]"; a long list is cut there."""
    array, _, task = name.partition("_")
    if not task or not shown.startswith(f"{array}_["):
        return False
    listed = shown.partition("[")[2].rstrip("]")
    try:
        return int(task) in array_tasks(listed)
    except UsageError:
        return True


def stdout_of(client: SlurmClient, name: str) -> Optional[str]:
    """Where its standard output goes; None when Slurm does not say. Only for the job's own user."""
    text = client.run(["scontrol", "show", "job", name], timeout_s=TIMEOUT_S)
    # The last: what a user wrote into a comment stands before it.
    return next(reversed(_STDOUT.findall(text)), None)


def admin_comment(client: SlurmClient, name: str) -> str:
    """Its AdminComment, "" without one."""
    text = client.run(["scontrol", "show", "job", name], timeout_s=TIMEOUT_S)
    return " ".join(_ADMIN_COMMENT.findall(text))


def in_grace_time(client: SlurmClient, name: str) -> bool:
    """Whether the job is being preempted and still runs; if it ends now, it may be over for Slurm."""
    text = client.run(["scontrol", "show", "job", name], timeout_s=TIMEOUT_S)
    return "JobState=RUNNING" in text and _PREEMPTED.search(text) is not None


def requeued_held(client: SlurmClient) -> List[str]:
    """The jobs that a requeue has left held."""
    return [name for name, reason in _listed(client, "PENDING", "%r") if reason == REQUEUED_HELD]


def with_comment(client: SlurmClient, state: str, mark: str) -> List[str]:
    """The jobs in one state that have `mark` behind something else in their comment."""
    return [name for name, comment in _listed(client, state, "%k") if f" {mark}" in comment]


def queued(client: SlurmClient) -> Tuple[QueuedJob, ...]:
    """What all pending and running jobs ask for."""
    columns = f"Partition:{_PARTITION_WIDTH},tres-per-node:128,tres-per-job:64"
    argv = ["squeue", "-a", "-h", "-t", "PENDING,RUNNING,SUSPENDED", "-O", columns]
    rows = (line for line in client.run(argv, timeout_s=TIMEOUT_S).splitlines() if line.strip())
    return tuple(QueuedJob(line[:_PARTITION_WIDTH].strip(), line[_PARTITION_WIDTH:].strip()) for line in rows)


def newest_end(client: SlurmClient) -> Optional[EndedJob]:
    """The job that ended last, of those that Slurm still remembers; None without any.

    The client must let Slurm print Unix times (SLURM_TIME_FORMAT=%s).
    """
    argv = ["squeue", "-h", "-a", "-t", "COMPLETED,FAILED,TIMEOUT,CANCELLED", "-o", "%A|%e|%N"]
    rows = (line.split("|") for line in client.run(argv, timeout_s=TIMEOUT_S).splitlines())
    # Without a node it was cancelled in the queue and never ran.
    ended = [EndedJob(row[0], float(row[1])) for row in rows if len(row) == 3 and row[1].isdigit() and row[2]]
    return max(ended, key=lambda job: job.at, default=None)


def waits_for(client: SlurmClient, name: str, before: str, uid: int) -> Optional[str]:
    """The --gres of a user's pending job (of an array: the whole) that waits for another; None without one.

    Anybody may let a job wait for anybody's: only its number and its owner say whose it is.
    """
    argv = ["squeue", "-h", "-a", "-j", name, "-t", "PENDING", "-o", "%F|%U|%E|%b"]
    rows = [line.split("|") for line in client.run(argv, timeout_s=TIMEOUT_S).splitlines()]
    named = re.compile(rf":{re.escape(before)}(?![0-9_])")
    found = [row[3] for row in rows if len(row) == 4 and row[:2] == [name, str(uid)] and named.search(row[2])]
    return found[0] if found else None


def slurm_job_command(job_id: int, *, comment: bool = False) -> List[str]:
    """The question for one job, by its own number; with more than one, squeue fetches the whole queue.

    A comment may hold lines that look like an answer: what limits a job is asked without.
    """
    columns = _SAMPLED_COLUMNS + ",Comment:4096" * comment
    return ["squeue", "-h", "-a", "-j", str(job_id), "-t", "all", "-O", columns]


def line_command(job_id: int, line: str) -> List[str]:
    """Puts a line on a job's stderr."""
    return ["scontrol", "notify", str(job_id), line]


def cancel_command(name: str) -> List[str]:
    """Ends a job; of an array one task, which may have the array's own number."""
    return ["scancel", name]


def parse_slurm_job(text: str, job_id: int) -> Optional[SlurmJob]:
    """The answer to it; None when the job is not in it. Its request may be empty."""
    for line in text.splitlines():
        head, _, comment = line.partition("|")
        words = head.split()
        if len(words) >= 6 and words[0] == str(job_id) and words[1].isdigit():
            asked = shares(words[6]) if len(words) > 6 else None
            task = _TASK.fullmatch(words[-1])
            array, number = (int(task[1]), int(task[2])) if task else (None, None)
            cpus = _number(words[4]) or None if words[5] == "1" else None
            restarts, said = _number(words[3]), comment.strip()
            return SlurmJob(job_id, int(words[1]), asked, words[2], restarts, array, number, cpus, said)
    return None


def is_unknown_job(error: str) -> bool:
    """Whether that is how squeue says that there is no such job."""
    return "Invalid job id specified" in error


def parse_job(line: str) -> Optional[Job]:
    """One line of squeue in the columns of `find_job`; None for one that is none."""
    cells: Dict[str, str] = {}
    at = 0
    for name, width in _JOB_COLUMNS:
        cells[name] = line[at : at + width].strip()
        at += width
    number = re.fullmatch(r"([0-9]+(?:_[0-9]+)?)(?:\+[0-9]+)?", cells["JobArrayID"])
    if number is None or not cells["UserID"].isdigit():
        return None
    limit = seconds_of(cells["TimeLimit"])
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
        uid=int(cells["UserID"]),
        partitions=tuple(cells["Partition"].split(",")),
        request=cells["tres-per-node"],
        comment=cells["Comment"],
        number=_number(cells["JobID"]),
        user=cells["UserName"],
        account=cells["Account"],
        qos=cells["QOS"],
        nodes=max(1, _number(cells["NumNodes"])),
        limit_min=None if limit is None else round(limit / 60),
        used_s=round(seconds_of(cells["TimeUsed"]) or 0),
        nice=_number(cells["Nice"]),
    )


def seconds_of(text: str) -> Optional[float]:
    """A time as Slurm prints it, [D-][H:]M:S; None for other words."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _listed(client: SlurmClient, state: str, column: str) -> List[Tuple[str, str]]:
    argv = ["squeue", "-h", "-a", "-t", state, "-o", f"%i|{column}"]
    rows = (line.partition("|") for line in client.run(argv, timeout_s=TIMEOUT_S).split("\n"))
    return [(name, value) for name, _, value in rows if JOB_NAME.fullmatch(name)]


def _status(text: str) -> str:
    """ "0:6" as 24.11 writes it; 22.05 writes the number that wait() gave."""
    if text.isdigit():
        return f"{int(text) >> 8}:{int(text) & 127}"
    return text


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else 0
