"""`gpumem top` as lines of text, and as JSON."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from slurm_gpumem.report.top.own import TopGpu, TopJob, View
from slurm_gpumem.terminal.bars import GpuRow, Segment, bar, draw
from slurm_gpumem.terminal.colour import Palette
from slurm_gpumem.text import clipped, count, printable
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


class _Column(NamedTuple):
    title: str
    text: Callable[[TopJob], str]
    right: bool = False


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
    return [*shown, *([""] if notes else []), *notes]


def as_json(view: View) -> Dict[str, Any]:
    """The same for programs."""
    gpus = [{**gpu._asdict(), "held": [_held(*held) for held in gpu.held]} for gpu in view.gpus]
    return {
        "schema": SCHEMA,
        "at": round(view.at, 3),
        "everybody": view.everybody,
        "jobs": [job._asdict() for job in view.jobs],
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
        _Column("JobID", lambda job: job.shown),
        *([_Column("User", lambda job: clipped(job.user, 10))] if view.everybody else []),
        _Column("Name", lambda job: clipped(job.name, _MOST_NAME)),
        _Column("Node", lambda job: job.node),
        _Column("GPU", _gpus),
        _Column("Share", lambda job: _share(job, look), right=True),
        _Column("Now", lambda job: short_mib(job.now_mib), right=True),
        _Column("Peak", lambda job: short_mib(job.peak_mib), right=True),
        _Column("SM", lambda job: percent(job.sm_active), right=True),
        _Column("Beside", lambda job: _beside(job, look)),
        _Column("Slow", lambda job: _slow(job, look), right=True),
        _Column("Left", lambda job: duration(job.left_s), right=True),
    ]
    texts = [[printable(column.text(job)) for column in columns] for job in view.jobs]
    kept = [at for at, column in enumerate(columns) if column.title == "Now" or any(row[at] for row in texts)]
    widths = {at: max(len(columns[at].title), *(len(row[at]) for row in texts)) for at in kept}
    # What does not fit goes, the least telling first.
    for title in ("Slow", "Node", "User", "Name", "GPU", "SM"):
        if sum(widths[at] + 2 for at in kept) + _LEAST_BAR <= look.width:
            break
        kept = [at for at in kept if columns[at].title != title]
    titles = [_cell(columns[at].title, columns[at], widths[at]) for at in kept]
    shown = [look.colours.dim("  ".join(titles).rstrip())]
    for job, row in zip(view.jobs, texts):
        line = "  ".join(_cell(row[at], columns[at], widths[at]) for at in kept)
        shown.append(f"{line}  {_use(job, look, look.width - len(line) - 2)}".rstrip())
    if look.height is not None and len(shown) > look.height - 6:
        left_out = len(shown) - max(2, look.height - 7)
        shown = [*shown[:-left_out], f"and {count(left_out, 'more job')}"]
    return shown


def _gpus(job: TopJob) -> str:
    """ "0", "0,1", "1:2g.35gb" on a MIG instance."""
    return ":".join(filter(None, [",".join(map(str, job.gpus)), job.profile]))


def _cell(text: str, column: _Column, width: int) -> str:
    return text.rjust(width) if column.right else text.ljust(width)


def _share(job: TopJob, look: Look) -> str:
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
