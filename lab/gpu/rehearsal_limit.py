"""The rehearsal's page on shares under `sharing.max_slowdown`: at one server (short and long jobs), per user.

Modes may have run different parts of the trace, so each is compared with the same jobs one after another.
Reads the rows that rehearsal.py wrote; needs no GPU.
"""

from __future__ import annotations

import statistics
from math import ceil
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from rehearsal_calm import calm_rate, inside, length, union
from rehearsal_report import (
    CONTEXT_SHARDS,
    Row,
    coefficients,
    ideal_s,
    jobs_in,
    number,
    observations,
    oom_lines,
    picture,
    read_rows,
    solo_of,
)

from slurm_gpumem.utilization.budget import share_for
from slurm_gpumem.utilization.interference import JobLoad

MODES = ("limit-shared", "limit-shared-long", "limit-per-user")
GPU_SHARDS = 139


def asked_shards(memory: int, active: float, step: float, limit: float, way: str) -> int:
    """What gpusbatch asks for where a job takes that many shards of memory."""
    # Occupancy and memory traffic of a usual job: solo rows do not have them.
    load = JobLoad(active, 0.3 * active, 0.4 * active, step)
    return max(memory, min(ceil(share_for(load, limit, limit, way).share * GPU_SHARDS), GPU_SHARDS))


class Limited(NamedTuple):
    """What one mode did, and the same jobs one after another; seconds, kJ, parts of 1."""

    name: str
    limit: float
    jobs: int
    cut: int
    """Jobs that trained or waited (also for their second run) when the time for the mode was over."""
    failed: int
    makespan: float
    serial: float
    busy: float
    work: float
    ideal: float
    rate: Optional[float]
    """Work done in a second while jobs wait and none starts up; 1 is one job alone."""
    calm: float
    """Seconds of which that is the mean."""
    slow: Sequence[float]
    energy: Optional[float]
    serial_energy: Optional[float]
    sm: Optional[float]
    saved: float
    saved_as_was: float
    """The same where exclusive jobs start up as slowly as these did."""
    reported: Optional[float]


def write_limit_report(out: Path, page: Path, others: Path) -> None:
    """Write the page and its picture; `others` has rows of the same kinds of jobs, for their interference."""
    rows = {path.stem: read_rows(path) for path in sorted(out.glob("*.jsonl"))}
    before = {path.stem: read_rows(path) for path in sorted(others.glob("*.jsonl"))}
    names = [name for name in MODES if jobs_in(rows.get(name, []))]
    found = [limited(name, rows, before) for name in names]
    page.write_text(_markdown(rows, found), encoding="utf-8")
    ends = {one.name: one.makespan for one in found}
    page.with_suffix(".svg").write_text(picture(rows, ends), encoding="utf-8")


def limited(name: str, rows: Dict[str, List[Row]], before: Dict[str, List[Row]]) -> Limited:
    """The figures of one mode."""
    mine, solo = rows[name], solo_of(rows["solo"])
    rates = {kind: one.steps_per_s for kind, one in solo.items()}
    jobs, (summary,) = jobs_in(mine), [row for row in mine if row.get("summary")]
    end = float(summary["span_s"])
    ended = [job for job in jobs if "done" in job]
    limit = next(row["max_slowdown"] for row in mine if "max_slowdown" in row)
    startup = statistics.fmean(job["ready"] - job["began"] for job in jobs_in(rows["exclusive"]))
    work = [len(job["ends"]) / solo[job["kind"]].steps_per_s for job in jobs]
    spans = [(job["ready"], job.get("done", end)) for job in jobs if "ready" in job]
    busy = union(spans)
    starting = [(job["began"], job["ready"]) for job in jobs if "ready" in job]
    starting += [(began, died) for job in jobs for began, died, _ in job.get("failed", [])]
    rate, calm = calm_rate(jobs, rates, starting, max(job["began"] for job in jobs))
    held = union([*starting, *spans])
    serial = sum(work) + startup * len(jobs)
    as_was = sum(work) + sum(job["ready"] - job["began"] for job in jobs if "ready" in job)
    watts = [solo[job["kind"]].power_w or 0.0 for job in jobs]
    idle = next(row["idle"]["power_w"] for row in rows["solo"] if "idle" in row)
    seen = observations(ended, solo)
    way = next(way for way in ("shared", "per-user") if way in name)
    waited = summary["missing"]
    if jobs_in(before.get(way, [])):
        seen += observations(jobs_in(before[way]), solo_of(before["solo"]))
    did = [job for job in jobs if job["ends"]]
    true = [{**job, "shards": job["memory_gib"] + CONTEXT_SHARDS, "steps": len(job["ends"])} for job in did]
    kinds = sorted({job["kind"] for job in jobs})
    sm = [row["sm"] for row in mine if row.get("sm") is not None and "t" in row and inside(row["t"], busy)]
    told = next((row["report"] for row in mine if isinstance(row.get("report"), dict)), {})
    extra = coefficients(kinds, seen)
    return Limited(
        name, limit, len(jobs),
        len(waited), sum("done" not in job and job["job"] not in waited for job in jobs),
        max(job.get("done", end) for job in jobs), serial, length(busy), sum(work),
        ideal_s(true, solo, extra, limit), rate, calm,
        [(job["done"] - job["ready"]) * solo[job["kind"]].steps_per_s / job["steps"] for job in ended],
        None if summary["energy_j"] is None else summary["energy_j"] / 1000,
        (sum(a * b for a, b in zip(work, watts)) + idle * startup * len(jobs)) / 1000,
        statistics.fmean(sm) if sm else None,
        1 - length(held) / serial, 1 - length(held) / as_was, told.get("saved"),
    )  # fmt: skip


def _markdown(rows: Dict[str, List[Row]], found: Sequence[Limited]) -> str:
    def line(name: str, value: Callable[[Limited], Any], digits: int = 1) -> str:
        return f"| {name} | " + " | ".join(number(value(one), digits) for one in found) + " |"

    def gain(part: float, one: Limited) -> float:
        return 100 * (1 - part / one.work)

    lines = [
        "# The trace under the slowdown limit",
        "",
        "Training jobs of two users on an H200 under real Slurm, all queued at once; a share is the larger",
        "of memory and activity under `sharing.max_slowdown`. Two jobs need 6 GiB more than their share:",
        "they run out of memory and come back. Rows: `rehearsal-limit/`; how to run it:",
        "[rehearsal.md](rehearsal.md).",
        "",
        "![When each job started up and trained](rehearsal-limit.svg)",
        "",
        "| | " + " | ".join(one.name for one in found) + " |",
        "|---|" + "---|" * len(found),
        line("max_slowdown", lambda one: one.limit),
        line("jobs", lambda one: one.jobs, 0),
        line("of these not done when the time was over", lambda one: one.cut, 0),
        line("jobs lost", lambda one: one.failed, 0),
        line("makespan, s", lambda one: one.makespan),
        line("the same jobs one after another, s", lambda one: one.serial),
        line("median slowdown of training", lambda one: statistics.median(one.slow), 2),
        line("worst slowdown", lambda one: max(one.slow), 2),
        line("time with a job training, s", lambda one: one.busy),
        line("the same one after another, s", lambda one: one.work),
        line("the same of an ideal packer within the limit, s", lambda one: one.ideal),
        line("less time with a job training, %", lambda one: gain(one.busy, one)),
        line("the same of the ideal packer, %", lambda one: gain(one.ideal, one)),
        line("work done while jobs wait and none starts up (1: a job alone)", lambda one: one.rate, 2),
        line("seconds of which that is the mean", lambda one: one.calm),
        line("work of the ideal packer", lambda one: one.work / one.ideal, 2),
        line("energy, kJ", lambda one: one.energy),
        line("energy of the same one after another, kJ", lambda one: one.serial_energy),
        line("SM activity while a job trains, %", lambda one: None if one.sm is None else 100 * one.sm),
        line("GPU time saved, %", lambda one: 100 * one.saved),
        line("with start-up as slow as it was beside others, %", lambda one: 100 * one.saved_as_was),
        line("the same by `gpumem report`, %", lambda one: one.reported and 100 * one.reported),
        "",
        *_notes(rows),
    ]
    return "\n".join([*lines, *oom_lines(rows), ""])


def _asked(rows: Sequence[Row], kind: str) -> int:
    """The shards that jobs of a kind asked for."""
    return next(int(job["shards"]) for job in jobs_in(rows) if job["kind"] == kind)


def _notes(rows: Dict[str, List[Row]]) -> List[str]:
    solo, alone = solo_of(rows["solo"]), jobs_in(rows["exclusive"])
    startup = statistics.fmean(job["ready"] - job["began"] for job in alone)
    told = [
        f"{job['kind']} trained {job['done'] - job['ready']:.2f} s, computed "
        f"{job['steps'] / solo[job['kind']].steps_per_s:.2f}"
        for job in alone
    ]
    names = [name for name in MODES if jobs_in(rows.get(name, []))]
    asked = " | ".join(f"shards, {name}" for name in names)
    return [
        f"One after another: each job's steps at its solo rate, and {startup:.1f} s of start-up (Python,",
        "CUDA, its model), the mean of jobs that had the GPU to themselves under Slurm",
        f"({'; '.join(told)}).",
        "Start-up takes longer than the training of the short jobs and holds the share meanwhile; work done",
        "while none starts up leaves that out. The ideal packer knows each job's memory and how much each",
        "kind slowed each other, and takes any order. limit-shared-long trains more than twice as long and",
        "was run later, without the cap of half a GPU for activity",
        "([sharing](../../docs/sharing.md#the-setting)).",
        "",
        f"| kind | step alone, ms | SM activity alone, % | power alone, W | {asked} |",
        "|---|---|---|---|" + "---|" * len(names),
        *(
            f"| {kind} | {1000 / one.steps_per_s:.1f} | {100 * (one.sm or 0):.0f} | {one.power_w:.0f} | "
            + " | ".join(str(_asked(rows[name], kind)) for name in names)
            + " |"
            for kind, one in solo.items()
        ),
    ]
