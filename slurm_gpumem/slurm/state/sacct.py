"""What Slurm's accounting knows of jobs: `sacct --json`, whose shape differs from version to version.

22.05 writes plain numbers and one state; later versions {"set", "infinite", "number"} and lists of states.
A field that is missing or of another shape is not known; nothing here fails over it.
"""

from __future__ import annotations

import json
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.slurm.client import COMMANDS, SlurmClient
from slurm_gpumem.units import MIB

_TIMEOUT_S = 5.0
_TEXT = 64
_COMMENT = 1024
_NO_TASK = 0xFFFFFFFE
"""slurm.h's NO_VAL, which 22.05 writes for jobs that are no tasks."""


class SlurmRow(NamedTuple):
    """One run of a job as slurmdbd has it."""

    job_id: int
    cluster: str
    user: str
    account: str
    name: str
    partition: str
    state: str
    submit: Optional[float]
    eligible: Optional[float]
    start: Optional[float]
    end: Optional[float]
    comment: str
    """Its owner's word."""
    array_job: Optional[int] = None
    """Of an array's task: the number of the array ..."""
    array_task: Optional[int] = None
    """... and the task's in it, from 0."""
    admin_comment: str = ""
    """Untouched."""
    nodes: Optional[int] = None
    cpus: Optional[int] = None
    """Allocated, as its memory, on all its nodes."""
    cpu_s: Optional[float] = None
    memory_bytes: Optional[int] = None
    used_bytes: Optional[int] = None
    """The most that one of its steps used; not known without JobAcctGatherType."""


def ask_runs(job_ids: Sequence[int], client: SlurmClient = COMMANDS) -> List[SlurmRow]:
    """Every run of these jobs, in order of their start; SlurmError when there is no accounting."""
    numbers = ",".join(map(str, job_ids))
    argv = ["sacct", "--json", "--duplicates", "--allusers", "-j", numbers]
    return parse_runs(client.run(argv, timeout_s=_TIMEOUT_S))


def set_admin_comment(name: str, comment: str, client: SlurmClient = COMMANDS) -> bool:
    """Of a job that ended, "12" or "12_3"; False when slurmdbd does not know it."""
    words = ["where", f"jobid={name}", "set", f"AdminComment={comment}"]
    return "Modified" in client.run(["sacctmgr", "-i", "modify", "job", *words], timeout_s=_TIMEOUT_S)


def parse_runs(text: str) -> List[SlurmRow]:
    """The rows of an answer; SlurmError when it is no JSON at all."""
    try:
        # Some versions write warnings of their plug-ins before it.
        table = json.loads(text[text.index("{") :])
    except (ValueError, RecursionError):
        raise SlurmError("sacct --json: the answer is not JSON") from None
    jobs = table.get("jobs") if isinstance(table, dict) else None
    rows = [row for row in map(_row, jobs if isinstance(jobs, list) else ()) if row is not None]
    return sorted(rows, key=lambda row: (row.job_id, row.start or row.submit or 0.0))


def _row(job: Any) -> Optional[SlurmRow]:
    if not isinstance(job, dict):
        return None
    job_id = _number(job.get("job_id"))
    if not job_id:
        return None
    times = job.get("time")
    times = times if isinstance(times, dict) else {}
    association = job.get("association")
    association = association if isinstance(association, dict) else {}
    comment = job.get("comment")
    comment = comment.get("job") if isinstance(comment, dict) else comment
    array_job, array_task = _array(job.get("array"))
    said = job.get("comment")
    said = said.get("administrator") if isinstance(said, dict) else None
    memory = _tres("mem", job.get("tres"), "allocated")
    spent = times.get("total")
    spent = spent if isinstance(spent, dict) else {}
    used = [_tres("mem", step.get("tres"), "requested", "total") for step in _tables(job.get("steps"))]
    return SlurmRow(
        job_id=int(job_id),
        cluster=_text(job.get("cluster")) or _text(association.get("cluster")),
        user=_text(job.get("user")) or _text(association.get("user")),
        account=_text(job.get("account")) or _text(association.get("account")),
        name=_text(job.get("name")),
        partition=_text(job.get("partition")),
        state=_state(job.get("state")),
        submit=_number(times.get("submission")),
        eligible=_number(times.get("eligible")),
        start=_number(times.get("start")),
        end=_number(times.get("end")),
        comment=_text(comment, _COMMENT),
        array_job=array_job,
        array_task=array_task,
        admin_comment=said if isinstance(said, str) else "",
        nodes=_tres("node", job.get("tres"), "allocated"),
        cpus=_tres("cpu", job.get("tres"), "allocated"),
        cpu_s=_seconds(spent.get("seconds"), spent.get("microseconds")),
        memory_bytes=None if memory is None else memory * MIB,
        used_bytes=max(filter(None, used), default=None),
    )


def _tables(value: Any) -> List[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _seconds(whole: Any, rest: Any) -> Optional[float]:
    return whole + rest / 1e6 if type(whole) is int and type(rest) is int else None


def _tres(kind: str, table: Any, *path: str) -> Optional[int]:
    """What stands there; of memory MiB of a job, bytes of a step."""
    for key in path:
        table = table.get(key) if isinstance(table, dict) else None
    found = [one.get("count") for one in _tables(table) if one.get("type") == kind]
    return found[0] if found and type(found[0]) is int and found[0] > 0 else None


def _array(value: Any) -> Tuple[Optional[int], Optional[int]]:
    """The array and the number of a task; (None, None) for a job that is none."""
    table = value if isinstance(value, dict) else {}
    number, task = _number(table.get("job_id")), table.get("task_id")
    if isinstance(task, Mapping):
        task = task.get("number") if task.get("set", True) and not task.get("infinite") else None
    if number is None or type(task) is not int or not 0 <= task < _NO_TASK:
        return None, None
    return int(number), task


def _state(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("current")
    if isinstance(value, list):
        value = value[0] if value else ""
    words = value.split() if isinstance(value, str) else []
    return words[0].rstrip("+")[:32] if words else ""


def _number(value: Any) -> Optional[float]:
    """A positive number, plain or as {"set": true, "number": …}."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    return float(value) if type(value) in (int, float) and 0 < value < 1e12 else None


def _text(value: Any, longest: int = _TEXT) -> str:
    if not isinstance(value, str):
        return ""
    plain = "".join("?" if letter < " " else letter for letter in value)
    return plain.encode("utf-8", "replace").decode()[:longest]


# Accounts, their coordinators and limits: `sacctmgr`.


class Limit(NamedTuple):
    """TRES limits of a QOS or an association."""

    entity: str
    """What `sacctmgr modify` calls it: "qos normal", "account phys", "user anna account=phys"."""
    name: str
    """The limit as `sacctmgr ... set` takes it: "MaxTRESPerUser"."""
    tres: str


def ask_coordinators(client: SlurmClient = COMMANDS) -> Tuple[str, ...]:
    """Users who coordinate an account; none without slurmdbd."""
    try:
        text = _show(client, "account", "withcoord", "format=coordinators")
    except SlurmError:
        return ()
    names = {name.strip() for line in text.splitlines() for name in line.split(",")}
    return tuple(sorted(names - {""}))


def ask_limits(client: SlurmClient = COMMANDS) -> Tuple[Limit, ...]:
    """The limits of every QOS, account and user; SlurmError when nobody may be asked."""
    qos = _show(client, "qos", "format=Name,GrpTRES,MaxTRES,MaxTRESPU,MaxTRESPA")
    return parse_limits(qos, _show(client, "assoc", "format=Account,User,GrpTRES,MaxTRES"))


def parse_limits(qos: str, associations: str) -> Tuple[Limit, ...]:
    """Limits of the lines that `ask_limits` asks for."""
    names = ("GrpTRES", "MaxTRESPerJob", "MaxTRESPerUser", "MaxTRESPerAccount")
    found = []
    for line in qos.splitlines():
        name, *values = line.split("|")
        found += [Limit(f"qos {name}", limit, tres) for limit, tres in zip(names, values) if tres]
    for line in associations.splitlines():
        account, user, *values = [*line.split("|"), "", ""]
        entity = f"user {user} account={account}" if user else f"account {account}"
        found += [Limit(entity, limit, tres) for limit, tres in zip(names, values) if tres]
    return tuple(dict.fromkeys(found))


def _show(client: SlurmClient, *what: str) -> str:
    return client.run(["sacctmgr", "-n", "-P", "show", *what], timeout_s=_TIMEOUT_S)
