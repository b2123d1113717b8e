"""`gpumem top` as lines of text, and as JSON."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.report.arrays import between, saved, states, waits_for_first
from slurm_gpumem.report.top.arrays import TopArray
from slurm_gpumem.report.top.own import TopGpu, TopJob, View
from slurm_gpumem.slurm.node_names import fold_names
from slurm_gpumem.terminal.bars import GpuRow, Segment, bar, draw
from slurm_gpumem.terminal.colour import Palette
from slurm_gpumem.text import clipped, count, printable, wrapped
from slurm_gpumem.units import duration, percent, short_mib

SCHEMA = "gpumem-top/1"
_BAR, _LEAST_BAR = 12, 4
_CLOSE = 0.95
_MOST_NAME = 16


class Look(NamedTuple):
    """How the screen is to look."""

    width: int
    height: Optional[int]
    """None in a pipe, where everything is printed."""
    unicode: bool
    colours: Palette
    each_task: bool = False
    """Every task of an array in a line of its own."""


class _Column(NamedTuple):
    title: str
    text: Callable[[_Line], str]
    right: bool = False


class _Line(NamedTuple):
    """A job, or the tasks of an array as one."""

    job: TopJob
    share: str
    peak: str
    below: Tuple[str, ...] = ()
    jobs: int = 1


def lines(view: View, look: Look) -> List[str]:
    """The whole screen."""
    shown = [look.colours.bold(_head(view)), ""]
    if view.everybody:
        shown += [*_pictures(view, look), ""]
    if view.jobs:
        shown += _table(view, look)
    else:
        whose = "no job runs on a GPU" if view.everybody else "no job of yours runs on a GPU"
        shown += [f"{whose}; squeue shows what waits"]
    room = None if look.height is None else max(0, look.height - len(shown) - 2)
    notes = [look.colours.dim(clipped(note, look.width)) for note in view.notes[:room]]
    shown += [*([""] if notes else []), *notes]
    return shown if look.unicode else [_ascii(line) for line in shown]


def _ascii(line: str) -> str:
    """For a screen that has nothing else, also where names or words have more."""
    return line.translate({ord("·"): "-", ord("…"): "+"}).encode("ascii", "replace").decode()


def as_json(view: View) -> Dict[str, Any]:
    """The same for programs."""
    gpus = [{**gpu._asdict(), "held": [_held(*held) for held in gpu.held]} for gpu in view.gpus]
    return {
        "schema": SCHEMA,
        "at": round(view.at, 3),
        "everybody": view.everybody,
        "jobs": [job._asdict() for job in view.jobs],
        "arrays": [array._asdict() for array in view.arrays],
        **({"gpus": gpus} if view.everybody else {}),
        "notes": list(view.notes),
    }


def _held(job: str, name: str, shares: int) -> Dict[str, Any]:
    return {"job": job, "name": name, "shares": shares}


def _head(view: View) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(view.at))
    whose = "" if view.everybody else " of yours"
    said = [f"gpumem top  {clock}  {count(len({job.job_id for job in view.jobs}), 'job')}{whose}"]
    if view.everybody:
        busy = sum(bool(gpu.held) for gpu in view.gpus)
        said.append(f"{busy} of {count(len(view.gpus), 'GPU')} in use")
    seen = [job.seen_at for job in view.jobs if job.seen_at is not None]
    if seen:
        said.append(f"measured {max(0.0, view.at - min(seen)):.0f} s ago")
    return " · ".join(said)


def _table(view: View, look: Look) -> List[str]:
    columns = [
        _Column("JobID", lambda line: line.job.shown),
        *([_Column("User", lambda line: clipped(line.job.user, 10))] if view.everybody else []),
        _Column("Name", lambda line: clipped(line.job.name, _MOST_NAME)),
        _Column("Node", lambda line: line.job.node),
        _Column("GPU", lambda line: _gpus(line.job)),
        _Column("Share", lambda line: line.share, right=True),
        _Column("Now", lambda line: short_mib(line.job.now_mib), right=True),
        _Column("Peak", lambda line: line.peak, right=True),
        _Column("SM", lambda line: percent(line.job.sm_active), right=True),
        _Column("Beside", lambda line: _beside(line.job, look)),
        _Column("Slow", lambda line: _slow(line.job, look), right=True),
        _Column("Left", lambda line: duration(line.job.left_s), right=True),
    ]
    lines_ = list(_lines(view, look))
    texts = [[printable(column.text(line)) for column in columns] for line in lines_]
    kept = [at for at, column in enumerate(columns) if column.title == "Now" or any(row[at] for row in texts)]
    widths = {at: max(len(columns[at].title), *(len(row[at]) for row in texts)) for at in kept}
    # What does not fit goes, the least telling first.
    for title in ("Slow", "Node", "User", "Name", "GPU", "SM"):
        if sum(widths[at] + 2 for at in kept) + _LEAST_BAR <= look.width:
            break
        kept = [at for at in kept if columns[at].title != title]
    titles = [_cell(columns[at].title, columns[at], widths[at]) for at in kept]
    shown = [look.colours.dim("  ".join(titles).rstrip())]
    left_out = 0
    for line, row in zip(lines_, texts):
        if left_out or (look.height is not None and len(shown) + len(line.below) >= look.height - 6):
            left_out += line.jobs
            continue
        text = "  ".join(_cell(row[at], columns[at], widths[at]) for at in kept)
        shown.append(f"{text}  {_use(line.job, look, look.width - len(text) - 2)}".rstrip())
        shown += [look.colours.dim(below) for below in line.below]
    return [*shown, *([f"and {count(left_out, 'more job')}"] if left_out else [])]


def _lines(view: View, look: Look) -> Iterator[_Line]:
    """Jobs in their order, the tasks of an array as one."""
    arrays = {array.array: array for array in view.arrays}
    tasks: Dict[int, List[TopJob]] = {}
    for job in view.jobs:
        if job.array in arrays:
            tasks.setdefault(job.array, []).append(job)
    for job in view.jobs:
        array = arrays.get(job.array) if job.array is not None else None
        mine = tasks.get(job.array, []) if job.array is not None else []
        if array is None or not (len(mine) > 1 or array.waiting or array.ended):
            yield _line(job)
        elif look.each_task:
            below = _below(array, mine, look) if job is mine[-1] else ()
            yield _line(job)._replace(below=below)
        elif job is mine[0]:
            yield _array_line(array, mine, look)


def _line(job: TopJob) -> _Line:
    return _Line(job, _share(job), short_mib(job.peak_mib))


def _array_line(array: TopArray, tasks: Sequence[TopJob], look: Look) -> _Line:
    """The task that is nearest to its share stands for all: the first one only where it is alone."""
    others = [task for task in tasks if task.shown != array.first] or tasks
    nearest = max(others, key=lambda task: (task.peak_mib or 0.0) / (task.share_mib or float("inf")))
    left = [task.left_s for task in tasks if task.left_s is not None]
    active = [task.sm_active for task in others if task.sm_active is not None]
    job = nearest._replace(
        shown=str(array.array),
        node=fold_names([*dict.fromkeys(task.node for task in tasks)]),
        gpus=tuple(sorted({gpu for task in tasks for gpu in task.gpus})),
        sm_active=sum(active) / len(active) if active else None,
        neighbours=nearest.neighbours if len(tasks) == 1 else None,
        left_s=max(left, default=None),
    )
    whole = {task.whole_gpu for task in others}
    share = between(task.share_mib for task in others) if whole == {False} else _share(nearest)
    peaks = between([*array.peaks_mib, *(task.peak_mib for task in tasks)])
    return _Line(job, share, peaks, _below(array, tasks, look), len(tasks))


def _below(array: TopArray, tasks: Sequence[TopJob], look: Look) -> Tuple[str, ...]:
    """What the columns do not say of an array, indented."""
    said = [states(["RUNNING"] * len(tasks) + list(array.ended), array.waiting)]
    if array.held:
        said = [f"{tasks[0].shown} runs first; {waits_for_first(array.waiting)}"]
    elif array.first:
        live = [task.peak_mib for task in tasks if task.shown == array.first]
        peak = short_mib(live[0] if live else array.first_peak_mib)
        said.append(f"{array.first} first: {peak or 'not measured'}")
    if array.used_s is not None and array.alone_s is not None:
        said.append(saved((array.used_s, array.alone_s)))
    text = printable("; ".join(filter(None, said)))
    return tuple(f"  {line}" for line in wrapped(text, look.width - 2))


def _gpus(job: TopJob) -> str:
    """ "0", "0,1", "1:2g.35gb" on a MIG instance."""
    return ":".join(filter(None, [",".join(map(str, job.gpus)), job.profile]))


def _cell(text: str, column: _Column, width: int) -> str:
    return text.rjust(width) if column.right else text.ljust(width)


def _share(job: TopJob) -> str:
    if job.whole_gpu:
        return "whole" if job.share_mib is None else f"all {short_mib(job.share_mib)}"
    return short_mib(job.share_mib)


def _beside(job: TopJob, look: Look) -> str:
    """How many others are on its GPUs, and what they hold together."""
    if job.neighbours is None:
        return ""
    if not job.neighbours:
        return "alone"
    held = f" ({short_mib(job.neighbours_mib)})" if job.neighbours_mib is not None else ""
    return f"{job.neighbours}{held}"


def _slow(job: TopJob, look: Look) -> str:
    if job.slowdown is not None or job.max_slowdown is None:
        return "" if job.slowdown is None else f"{job.slowdown:g}"
    return f"{'≤' if look.unicode else '<'}{job.max_slowdown:g}"


def _use(job: TopJob, look: Look, room: int) -> str:
    """What it holds of its share, as a bar; full ones are marked."""
    width = min(_BAR, room)
    if job.now_mib is None or not job.share_mib or width < _LEAST_BAR:
        return ""
    drawn = bar(round(job.now_mib), round(job.share_mib), width=width, unicode=look.unicode)[:width]
    most = max(job.now_mib, job.peak_mib or 0.0)
    if most <= _CLOSE * job.share_mib:
        return look.colours.green(drawn)
    over = most > job.share_mib
    said = f"{drawn} {'over' if over else 'close to'} its share"
    said = said if len(said) <= room else f"{drawn[: room - 1]}!"
    return look.colours.red(said) if over else look.colours.yellow(said)


def _pictures(view: View, look: Look) -> List[str]:
    """GPUs as bars: those in use, and how many are idle where not all fit."""
    busy = [gpu for gpu in view.gpus if gpu.held]
    most = len(view.gpus) if look.height is None else max(4, look.height // 2 - 4)
    chosen = list(view.gpus) if len(view.gpus) <= most else busy[:most]
    rows = [GpuRow(gpu.node, gpu.number, gpu.capacity, _segments(gpu), gpu.profile) for gpu in chosen]
    drawn = draw(rows, width=look.width, unicode=look.unicode) if rows else []
    hidden = len(view.gpus) - len(chosen)
    if hidden:
        idle = len(view.gpus) - len(busy)
        drawn.append(f"{count(hidden, 'more GPU')}, {idle} idle in all")
    return drawn


def _segments(gpu: TopGpu) -> Tuple[Segment, ...]:
    return tuple(
        Segment(job, clipped(name, _MOST_NAME), shares, "" if shares == gpu.capacity == 1 else str(shares))
        for job, name, shares in gpu.held
    )
