"""Arrays in `gpumem top`: Slurm says what waits, the job records what the tasks that ended took."""

from __future__ import annotations

import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.accounting.types import Filters, JobRow
from slurm_gpumem.config.accounting import AccountingConfig
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.report.arrays import FIT, Queued, first_task, gpu_time, queued_arrays
from slurm_gpumem.slurm.client import SlurmClient

_EVERY_S = 10.0


class TopArray(NamedTuple):
    """One array of which a task runs; None is "not known"."""

    array: int
    waiting: int = 0
    held: bool = False
    """They wait for what the first task takes."""
    first: str = ""
    """The task that was or is measured for the others: "4711_0"."""
    first_peak_mib: Optional[float] = None
    ended: Tuple[str, ...] = ()
    """States of the tasks that are over."""
    peaks_mib: Tuple[float, ...] = ()
    """Of those that did not fail."""
    used_s: Optional[float] = None
    """GPU-seconds that they took, and would have taken on whole GPUs."""
    alone_s: Optional[float] = None


class Arrays:
    """Looks again and again, when arrays run."""

    def __init__(self, config: Optional[AccountingConfig], client: SlurmClient) -> None:
        self._config = config
        self._client = client
        self._asked = float("-inf")
        self._known: Dict[int, TopArray] = {}
        self._note = ""

    def look(self, running: Mapping[int, Sequence[str]]) -> Tuple[Tuple[TopArray, ...], str]:
        """Those of these arrays and their running tasks; what is missing, "" for nothing."""
        if not running:
            return (), ""
        if time.monotonic() - self._asked >= _EVERY_S or running.keys() - self._known.keys():
            queued, (ended, self._note) = queued_arrays(self._client), self._records(tuple(running))
            self._known = {
                array: _top_array(array, queued.get(array, Queued()), ended.get(array, []), tasks)
                for array, tasks in running.items()
            }
            self._asked = time.monotonic()
        return tuple(self._known[array] for array in running), self._note

    def _records(self, arrays: Tuple[int, ...]) -> Tuple[Dict[int, List[JobRow]], str]:
        import sqlite3

        from slurm_gpumem.accounting.store import open_store

        found: Dict[int, List[JobRow]] = {}
        try:
            with open_store(config=self._config, join=False) as store:
                for row in store.select(Filters(jobs=arrays)):
                    if row.array_job is not None:
                        found.setdefault(row.array_job, []).append(row)
        except (GpumemError, sqlite3.Error) as error:
            return {}, f"tasks that ended are not shown: {error}".partition("\n")[0]
        return found, ""


def _top_array(array: int, queued: Queued, tasks: Sequence[JobRow], running: Sequence[str]) -> TopArray:
    over = [
        task
        for task in tasks
        if task.end is not None and task.state != "REQUEUED" and task.name not in running
    ]
    first, took = first_task(tasks), gpu_time(over)
    # After the longest wait several run on whole GPUs, and none of them was first.
    runs_first = queued.first[0] if len(queued.first) == 1 else ""
    return TopArray(
        array,
        waiting=queued.waiting,
        held=queued.held,
        first=first.name if first is not None else runs_first,
        first_peak_mib=None if first is None else first.peak_mib,
        ended=tuple(task.state for task in over),
        peaks_mib=tuple(task.peak_mib for task in over if task.peak_mib and task.state in FIT),
        used_s=None if took is None else took[0],
        alone_s=None if took is None else took[1],
    )
