"""One job's state and the changes to it: what recovery asks of Slurm and tells it."""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from slurm_gpumem.slurm import config_show
from slurm_gpumem.slurm.client import COMMANDS, SlurmClient
from slurm_gpumem.slurm.state import nodes, queue
from slurm_gpumem.slurm.state.nodes import Record, ask_partitions, parse_records
from slurm_gpumem.slurm.state.queue import TIMEOUT_S, Job

# The TRES limits that one job is under, from the controller's own memory: `scontrol show assoc_mgr`.
#
# Only limits that a single job can exceed by itself, whatever else runs. As in Slurm, a limit of the
# partition's QOS counts before one of the job's QOS, and that before those of the user's association and
# its accounts.


_TRES = re.compile(r"(?:^|,)(gres/[^=,]+)=([0-9]+)")
_GROUP, _JOB, _NODE, _USER, _ACCOUNT = "GrpTRES", "MaxTRESPJ", "MaxTRESPN", "MaxTRESPU", "MaxTRESPA"
_OF_QOS = (_GROUP, _JOB, _NODE, _USER, _ACCOUNT)
_OF_USER = (_GROUP, _JOB, _NODE)
_OF_ACCOUNT = (_GROUP,)
"""What an account has for each job, its users' associations have inherited."""


class TresLimit(NamedTuple):
    """How much of one TRES a job may have."""

    tres: str
    """ "gres/gpu", "gres/shard:a100"."""
    most: int
    where: str
    """ "GrpTRES of account phys"."""


class JobLimits:
    """The limits of jobs, asked once per user and partition."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client
        self._known: Dict[Tuple[str, ...], Tuple[TresLimit, ...]] = {}
        self._partitions: Optional[Mapping[str, str]] = None

    def of(self, job: Job) -> Tuple[TresLimit, ...]:
        """All that count for this job; SlurmError when nobody answers."""
        key = (job.user, job.account, job.qos, *job.partitions)
        if key not in self._known:
            self._known[key] = self._ask(job)
        return self._known[key]

    def _ask(self, job: Job) -> Tuple[TresLimit, ...]:
        if self._partitions is None:
            shown = ask_partitions(self._client)
            self._partitions = {part["PartitionName"]: part.get("QoS", "N/A") for part in shown}
        first = self._partitions.get(job.partitions[0], "N/A")
        names = [name for name in (first, job.qos) if name not in ("", "N/A", "(null)")]
        wanted = ["flags=assoc,qos", f"users={job.user}", *([f"qos={','.join(names)}"] if names else [])]
        text = self._client.run(["scontrol", "-o", "show", "assoc_mgr", *wanted], timeout_s=TIMEOUT_S)
        qos = {record["QOS"].partition("(")[0]: record for record in parse_records(text, "QOS")}
        levels = [_limits(qos[name], f"QOS {name}", _OF_QOS) for name in names if name in qos]
        levels.append(_of_associations(parse_records(text, "ClusterName"), job))
        return _first_of_each(levels)


def exceeded(
    limits: Sequence[TresLimit], gres: str, gpu_type: Optional[str], count: int, nodes: int = 1
) -> Optional[str]:
    """The limit that so much on each of its nodes would exceed, in words; None where none does."""
    names = (f"gres/{gres}", f"gres/{gres}:{gpu_type}" if gpu_type else "")
    for limit in limits:
        times = 1 if limit.where.startswith(_NODE) else nodes
        if limit.tres in names and count * times > limit.most:
            return f"{limit.where} is {limit.tres}={limit.most}"
    return None


def _of_associations(records: Sequence[Record], job: Job) -> List[Tuple[str, TresLimit]]:
    """The limits of the user's association and of all accounts above it."""
    accounts = {record.get("Account", ""): record for record in records if not record.get("UserName")}
    own = [
        record
        for record in records
        if record.get("UserName", "").partition("(")[0] == job.user
        and record.get("Account") == job.account
        and record.get("Partition", "") in ("", job.partitions[0])
    ]
    found: List[Tuple[str, TresLimit]] = []
    # One for the partition counts before the one for all.
    for record in sorted(own, key=lambda record: not record.get("Partition"))[:1]:
        found += _limits(record, f"user {job.user} in account {job.account}", _OF_USER)
    name, seen = job.account, set()
    while name in accounts and name not in seen:
        seen.add(name)
        found += _limits(accounts[name], f"account {name}", _OF_ACCOUNT)
        name = accounts[name].get("ParentAccount", "").partition("(")[0]
    return found


def _limits(record: Record, owner: str, names: Sequence[str]) -> List[Tuple[str, TresLimit]]:
    return [
        (name, TresLimit(tres, int(most), f"{name} of {owner}"))
        for name in names
        for tres, most in _TRES.findall(record.get(name, ""))
    ]


def _first_of_each(levels: Sequence[Sequence[Tuple[str, TresLimit]]]) -> Tuple[TresLimit, ...]:
    """Of each kind and TRES, those of the first level that has any."""
    found: List[TresLimit] = []
    settled: Set[Tuple[str, str]] = set()
    for level in levels:
        fresh = [(kind, limit) for kind, limit in level if (kind, limit.tres) not in settled]
        found += [limit for _, limit in fresh]
        settled |= {(kind, limit.tres) for kind, limit in fresh}
    return tuple(found)


class Controller:
    """Questions and changes, each with a time limit; SlurmError when one fails."""

    def __init__(self, client: SlurmClient = COMMANDS) -> None:
        self._client = client
        self._limits = JobLimits(client)

    def job(self, name: str) -> Optional[queue.Job]:
        """The job as it is now; None when Slurm has forgotten it."""
        return queue.find_job(self._client, name)

    def stdout_of(self, name: str) -> Optional[str]:
        """Where its standard output goes; None when Slurm does not say. Only for the job's own user."""
        return queue.stdout_of(self._client, name)

    def admin_comment(self, name: str) -> str:
        """What stands in its AdminComment."""
        return queue.admin_comment(self._client, name)

    def site(self) -> config_show.Site:
        """Version and settings of the running controller."""
        return config_show.ask_site(self._client)

    def waits_for(self, name: str, before: str, uid: int) -> Optional[str]:
        """The --gres of a user's pending job that waits for another; None if there is none."""
        return queue.waits_for(self._client, name, before, uid)

    def units_per_gpu(self, partitions: Tuple[str, ...], gres: str) -> Dict[Optional[str], int]:
        """Shards (or mps units) of one GPU by its type, the most that any node has, in these partitions."""
        return nodes.units_in_partitions(self._client, partitions, gres)

    def gpu_types(self, partitions: Tuple[str, ...]) -> Tuple[str, ...]:
        """The GPU types of these partitions."""
        return nodes.gpu_types_in_partitions(self._client, partitions)

    def limits_of(self, job: queue.Job) -> Tuple[TresLimit, ...]:
        """The limits that this job alone can exceed."""
        return self._limits.of(job)

    def left_over(self, mark: str) -> List[str]:
        """Jobs that a recovery may have left half done: held after a requeue, or failed and marked so."""
        return [*queue.requeued_held(self._client), *queue.with_comment(self._client, "FAILED", mark)]

    def requeue_held(self, name: str) -> None:
        """Back into the queue, held: nothing can start it before it is changed."""
        self._tell("scontrol", "requeuehold", name)

    def cancel(self, name: str) -> None:
        """End it for good."""
        self._tell("scancel", name)

    def update(self, name: str, **fields: str) -> None:
        """Change several fields in one request: all of them, or none."""
        self._tell(
            "scontrol", "update", f"JobId={name}", *(f"{key}={value}" for key, value in fields.items())
        )

    def release(self, name: str) -> None:
        """Let it be scheduled."""
        self._tell("scontrol", "release", name)

    def _tell(self, *argv: str) -> None:
        self._client.run(argv, timeout_s=queue.TIMEOUT_S)
