"""Arrays as people follow them: the task that ran first, who waits, what the others got, what was saved."""

from __future__ import annotations

import os
from collections import Counter
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.accounting.types import JobDetail, JobRow
from slurm_gpumem.formats.comment import parse_record
from slurm_gpumem.slurm.client import SlurmClient
from slurm_gpumem.slurm.state.arrays import queued_tasks
from slurm_gpumem.text import count, printable
from slurm_gpumem.units import gpu_hours, percent, short_mib

FIT = ("COMPLETED", "TIMEOUT", "RUNNING")
"""States of a first task whose peak the others were given; another passed its place on."""
_MOST_NAMED = 5


class Queued(NamedTuple):
    """What Slurm has of an array that is not over."""

    waiting: int = 0
    held: bool = False
    """They wait for what a first task takes."""
    first: Tuple[str, ...] = ()
    """Tasks that run on whole GPUs because nobody knew what they take: "4711_0"."""


def queued_arrays(client: SlurmClient) -> Dict[int, Queued]:
    """One's own, root's everybody's, by their numbers."""
    found: Dict[int, Queued] = {}
    for tasks in queued_tasks(client, os.geteuid() or None):
        known, record = found.get(tasks.array, Queued()), parse_record(tasks.comment)
        unknown = record is not None and record.hold is not None and not record.shards
        if tasks.running:
            known = known._replace(first=(*known.first, tasks.shown)) if unknown else known
        else:
            held = known.held or (unknown and tasks.at_once == 1)
            known = known._replace(waiting=known.waiting + tasks.how_many, held=held)
        found[tasks.array] = known
    return found


def states(names: Iterable[str], waiting: int = 0) -> str:
    """ "1 RUNNING, 8 PENDING, 3 COMPLETED, 1 FAILED"."""
    counted = Counter(names) + Counter(PENDING=waiting)
    order = sorted(counted, key=_place)
    return ", ".join(f"{counted[state]:,} {printable(state)}" for state in order)


def _place(state: str) -> Tuple[int, str]:
    known = ("RUNNING", "PENDING", "COMPLETED")
    return (known.index(state) if state in known else len(known), state)


def first_task(tasks: Sequence[JobRow]) -> Optional[JobRow]:
    """The one that was measured for the others; None where all were known, or none is."""
    unknown = [task for task in tasks if task.estimate_mib is None and task.request_mib is None]
    if len(unknown) == len(tasks):
        return None
    return min(unknown, key=lambda task: (task.state not in FIT, task.start), default=None)


def between(values: Iterable[Optional[float]]) -> str:
    """ "8.8G", "8.8G..9.7G"; "" where nothing is known."""
    known = [value for value in values if value is not None]
    texts = [short_mib(value) for value in (min(known), max(known))] if known else [""]
    return "..".join(dict.fromkeys(texts))


def gpu_time(tasks: Sequence[JobRow]) -> Optional[Tuple[float, float]]:
    """GPU-seconds that the tasks took, and would have taken on whole GPUs, of those that did not fail.

    None where less than half of their run time can be compared.
    """
    over = [task for task in tasks if task.end is not None and task.state != "FAILED"]
    run_s = sum(task.gpu_s or 0.0 for task in over)
    known = [
        (task.used_s, task.alone_s, task.gpu_s or 0.0)
        for task in over
        if task.used_s is not None and task.alone_s is not None
    ]
    if not known or sum(run for _, _, run in known) < run_s / 2:
        return None
    return sum(used for used, _, _ in known), sum(alone for _, alone, _ in known)


def saved(time: Optional[Tuple[float, float]]) -> str:
    """ "2.1 GPU-hours saved"; "" where nothing was, or nobody knows."""
    return f"{gpu_hours(time[1] - time[0])[0]} saved" if time and time[1] > time[0] else ""


def waits_for_first(waiting: int) -> str:
    """Why no others run."""
    them = "1 task waits" if waiting == 1 else f"{waiting:,} tasks wait"
    return f"{them} until its peak stands still or it ends"


def note_of(tasks: Sequence[JobRow], queued: Queued) -> str:
    """An array in a line of a list."""
    all_states = states((task.state for task in tasks), queued.waiting)
    said = [f"{count(len(tasks) + queued.waiting, 'task')}: {all_states}"]
    first = first_task(tasks)
    if queued.held:
        said.append("measured first, the others wait for it")
    elif first is not None:
        said.append(f"{first.name} first: {short_mib(first.peak_mib) or 'not measured'}")
    return "; ".join(filter(None, [*said, saved(gpu_time(tasks))]))


def summary_lines(details: Sequence[JobDetail], queued: Queued) -> List[str]:
    """An array as a mail would sum it up."""
    tasks = [detail.row for detail in details]
    row, first = tasks[0], first_task(tasks)
    # Those that failed before it had whole GPUs, too.
    others = tasks if first is None else [task for task in tasks if task.estimate_mib is not None]
    what = ", ".join(dict.fromkeys(printable(task.model) for task in tasks if task.model))
    lines = [
        ", ".join(filter(None, [f"Array {row.array_job} of {printable(row.user)}", what]))
        + f": {count(len(tasks) + queued.waiting, 'task')}",
        f"  {states((task.state for task in tasks), queued.waiting)}{_not_completed(tasks)}",
    ]
    if queued.held:
        runs = queued.first[0] if queued.first else "one task"
        lines.append(f"  {runs} runs first on a whole GPU; {waits_for_first(queued.waiting)}")
    if first is not None:
        lines.append(f"  first: {first.name} on a whole GPU{_device(first)}, peak {_peaks([first])}")
    if others and not queued.held:
        well = [task for task in others if task.state in FIT] or others
        share = between(task.granted_mib for task in others) or "not measured yet"
        at_once = most_on_one_gpu(details)
        beside = f", up to {at_once} on one GPU" if at_once > 1 else ""
        lines.append(f"  {'the others' if first else 'all'}: {share} each{beside}, peaks {_peaks(well)}")
    ooms = [task for task in tasks if task.ooms]
    if ooms:
        again, done = sum(task.attempts > 1 for task in ooms), sum(task.recovered for task in ooms)
        lines.append(
            f"  out of memory: {count(len(ooms), 'task')}, {again} run again, {done} of them completed"
        )
    return [*lines, *_time_line(tasks)]


def _time_line(tasks: Sequence[JobRow]) -> List[str]:
    time = gpu_time(tasks)
    if time is not None and time[1]:
        used, alone = gpu_hours(*time)
        return [f"  {used} used instead of {alone} on whole GPUs ({percent(1 - time[0] / time[1])} less)"]
    run_s = sum(task.gpu_s or 0.0 for task in tasks)
    if not run_s:
        return []
    if any(task.used_s is None for task in tasks if task.end is not None):
        return [f"  {gpu_hours(run_s)[0]} of run time; others shared the GPUs, so what was used is not known"]
    used, run = gpu_hours(sum(task.used_s or 0.0 for task in tasks), run_s)
    return [f"  {used} used in {run} of run time; on whole GPUs: not known"]


def _not_completed(tasks: Sequence[JobRow]) -> str:
    names = [task.name for task in tasks if task.state not in ("COMPLETED", "RUNNING")]
    more = ", ..." if len(names) > _MOST_NAMED else ""
    return f" ({', '.join(names[:_MOST_NAMED])}{more})" if names else ""


def _device(task: JobRow) -> str:
    size = ", ".join(filter(None, (printable(task.gpu), short_mib(task.gpu_memory_mib))))
    return f" ({size})" if size else ""


def _peaks(tasks: Sequence[JobRow]) -> str:
    return between(task.peak_mib for task in tasks) or "not measured"


def most_on_one_gpu(details: Sequence[JobDetail]) -> int:
    """How many of the tasks were on one GPU at the same moment."""
    events: Dict[str, List[Tuple[float, int]]] = {}
    for run in (run for detail in details for run in detail.runs):
        for stay in run.stays:
            # Ends before begins of the same moment; who still runs has no end.
            events.setdefault(stay.device.uuid, []).append((stay.start, 1))
            events[stay.device.uuid].append((float("inf") if stay.end is None else stay.end, -1))
    most = 0
    for changes in events.values():
        here = 0
        for _, change in sorted(changes):
            here += change
            most = max(most, here)
    return most
