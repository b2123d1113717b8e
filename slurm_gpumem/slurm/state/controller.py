"""One job's state and the changes to it: what recovery asks of Slurm and tells it."""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from slurm_gpumem.slurm.client import COMMANDS, SlurmClient
from slurm_gpumem.slurm.conf import config_show
from slurm_gpumem.slurm.state import limits, nodes, queue


class Controller:
    """Questions and changes, each with a time limit; SlurmError when one fails."""

    def __init__(self, client: SlurmClient = COMMANDS) -> None:
        self._client = client
        self._limits = limits.JobLimits(client)

    def job(self, name: str) -> Optional[queue.Job]:
        """The job as it is now; None when Slurm has forgotten it."""
        return queue.find_job(self._client, name)

    def stdout_of(self, name: str) -> Optional[str]:
        """Where its standard output goes; None when Slurm does not say. Only for the job's own user."""
        return queue.stdout_of(self._client, name)

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

    def limits_of(self, job: queue.Job) -> Tuple[limits.TresLimit, ...]:
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
