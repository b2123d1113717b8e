"""The rehearsal's report: each mode against exclusive GPUs and against an ideal packer, and a picture.

Reads the rows that rehearsal.py wrote; needs no GPU.
"""

from __future__ import annotations

import json
import random
import statistics
from math import inf
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from rehearsal_calm import calm_rate, union

from lab.svg import LIGHT_AND_DARK, Frame, document, key, text

MODES = ("shared", "per-user", "timeslice")
_LEAST_INTERVAL_S = 0.3
_SHRINK = 0.5
"""Weight of the mean coefficient against the observations, in seconds of observation."""
_ORDERS = 400
_MOST_AT_ONCE = 8
_GPU_SHARDS = 140
CONTEXT_SHARDS = 2
_GREY = "#9aa5b1"
_COLOURS = ("#3a78c2", "#c2643a")
Row = Dict[str, Any]
Observation = Tuple[str, Tuple[str, ...], float, float]
"""A kind, the kinds beside it, the extra time of a step, and for how many seconds."""
_HOW = (
    "",
    "## Run it yourself",
    "",
    "As root on a machine with an NVIDIA GPU, torch and Slurm; what is complete in DIR is not run again:",
    "",
    "```",
    "python3 lab/gpu/rehearsal.py --out DIR --mode shared         # also per-user, timeslice, exclusive",
    "python3 lab/gpu/rehearsal.py --out DIR --mode limit-shared   # -long; limit-per-user",
    "python3 lab/gpu/rehearsal.py --out DIR --mode report         # this page, or rehearsal-limit.md",
    "```",
    "",
    "`--max-slowdown 1.5` tries another limit; `--up` and `--down` name the commands that start and stop",
    "Slurm; `--rehearse` plays it on a dev cluster without a GPU.",
)


class Solo(NamedTuple):
    """One kind alone on the GPU."""

    steps_per_s: float
    power_w: Optional[float]
    sm: Optional[float]


class Mode(NamedTuple):
    """What one mode took."""

    name: str
    makespan_s: float
    completion_s: float
    waiting_s: float
    startup_s: float
    busy_s: float
    median_slowdown: float
    worst_slowdown: float
    failed: int
    energy_kj: Optional[float]
    above_idle_kj: Optional[float]
    sm_busy: Optional[float]
    ideal_s: float
    rate: Optional[float]
    """Work done in a second while jobs wait and none starts up; 1 is one job alone."""
    calm_s: float
    """Seconds of which that is the mean."""


def write_report(out: Path, page: Path) -> None:
    """Write the page and, beside it, its picture, from the rows of all modes."""
    rows = {path.stem: read_rows(path) for path in sorted(out.glob("*.jsonl"))}
    solo = solo_of(rows.get("solo", []))
    found = [mode_of(name, rows[name], solo) for name in MODES if _complete(rows.get(name, []))]
    page.write_text(_markdown(rows, solo, found), encoding="utf-8")
    ends = {mode.name: mode.makespan_s for mode in found}
    page.with_suffix(".svg").write_text(picture(rows, ends), encoding="utf-8")


def solo_of(rows: Sequence[Row]) -> Dict[str, Solo]:
    """Each kind alone."""
    return {
        row["kind"]: Solo(row["steps_per_s"], row.get("power_w"), row.get("sm"))
        for row in rows
        if "steps_per_s" in row
    }


def _complete(rows: Sequence[Row]) -> bool:
    """Whether a mode was run to its end, not cut off."""
    return bool(jobs_in(rows)) and any(row.get("summary") for row in rows)


def read_rows(path: Path) -> List[Row]:
    """All whole rows of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def mode_of(name: str, rows: Sequence[Row], solo: Dict[str, Solo]) -> Mode:
    """The figures of one mode."""
    jobs, (summary,) = jobs_in(rows), [row for row in rows if row.get("summary")]
    slow = [(job["done"] - job["ready"]) / _solo_s(job, solo) for job in jobs if "done" in job]
    idle = (summary.get("idle") or {}).get("power_w")
    energy, span = summary.get("energy_j"), max(_end(job) for job in jobs)
    busy = union([(job["ready"], _end(job)) for job in jobs if "ready" in job])
    samples = [row for row in rows if row.get("sm") is not None and "t" in row]
    inside = [row["sm"] for row in samples if any(low <= row["t"] <= high for low, high in busy)]
    return Mode(
        name,
        span,
        statistics.fmean(_end(job) - job["submitted"] for job in jobs),
        statistics.fmean(job["began"] - job["submitted"] for job in jobs),
        statistics.fmean(job["ready"] - job["began"] for job in jobs if "ready" in job),
        sum(high - low for low, high in busy),
        statistics.median(slow),
        max(slow),
        sum("done" not in job for job in jobs),
        None if energy is None else energy / 1000,
        None if energy is None or idle is None else (energy - idle * summary["span_s"]) / 1000,
        statistics.fmean(inside) if inside else None,
        ideal_s(jobs, solo, coefficients(sorted({job["kind"] for job in jobs}), observations(jobs, solo))),
        *calm_rate(
            jobs,
            {kind: one.steps_per_s for kind, one in solo.items()},
            [(job["began"], job["ready"]) for job in jobs if "ready" in job],
            max(job["began"] for job in jobs),
        ),
    )


def coefficients(kinds: Sequence[str], seen: Sequence[Observation]) -> Dict[Tuple[str, str], float]:
    """How much longer a step of one kind takes for each job of another beside it, as measured in a mode.

    Least squares over all intervals between two starts or ends, each by its length; kinds that hardly met
    are drawn to the mean.
    """
    met = sum(seconds * len(others) for _, others, _, seconds in seen)
    mean = sum(extra * seconds for _, _, extra, seconds in seen) / met if met else 0.0
    found = {(one, other): mean for one in kinds for other in kinds}
    for _ in range(200):
        for pair in found:
            top, bottom = _SHRINK * mean, _SHRINK
            for kind, others, extra, seconds in seen:
                times = others.count(pair[1]) if kind == pair[0] else 0
                if times:
                    rest = sum(found[kind, other] for other in others) - times * found[pair]
                    top += seconds * times * (extra - rest)
                    bottom += seconds * times * times
            found[pair] = max(0.0, top / bottom)
    return found


def observations(jobs: Sequence[Row], solo: Dict[str, Solo]) -> List[Observation]:
    """Those of each interval between two starts or ends."""
    training = [job for job in jobs if "ready" in job and "done" in job]
    edges = sorted({edge for job in training for edge in (job["ready"], job["done"])})
    seen = []
    for low, high in zip(edges, edges[1:]):
        here = [job for job in training if job["ready"] <= low and job["done"] >= high]
        if high - low < _LEAST_INTERVAL_S:
            continue
        for job in here:
            steps = sum(low < end <= high for end in job["ends"])
            others = tuple(other["kind"] for other in here if other is not job)
            if steps >= 3 and others:
                speed = steps / (high - low) / solo[job["kind"]].steps_per_s
                seen.append((job["kind"], others, max(0.0, 1 / speed - 1), high - low))
    return seen


def ideal_s(
    jobs: Sequence[Row], solo: Dict[str, Solo], extra: Dict[Tuple[str, str], float], limit: float = inf
) -> float:
    """The shortest time found for this work without start-up: any order, any number at once that fits.

    No job is to take more than `limit` times as long as alone at any moment.
    """
    shuffle = random.Random(1)
    orders = [list(jobs)] + [shuffle.sample(list(jobs), len(jobs)) for _ in range(_ORDERS)]
    most_at_once = range(1, min(len(jobs), _MOST_AT_ONCE) + 1)
    return min(_packed_s(order, most, solo, extra, limit) for order in orders for most in most_at_once)


def _packed_s(
    order: Sequence[Row],
    most: int,
    solo: Dict[str, Solo],
    extra: Dict[Tuple[str, str], float],
    limit: float,
) -> float:
    waiting, now = list(order), 0.0
    running: List[Tuple[Row, float]] = []
    room = _GPU_SHARDS
    while waiting or running:
        for job in list(waiting):
            fits = len(running) < most and job["shards"] <= room
            if fits and max(stretches_of([*(one for one, _ in running), job], extra)) <= limit:
                waiting.remove(job)
                room -= job["shards"]
                running.append((job, _solo_s(job, solo)))
        speeds = [1 / stretch for stretch in stretches_of([job for job, _ in running], extra)]
        passed = min(left / speed for (_, left), speed in zip(running, speeds))
        now += passed
        after = [(job, left - passed * speed) for (job, left), speed in zip(running, speeds)]
        running = [(job, left) for job, left in after if left > 1e-9]
        room += sum(job["shards"] for job, left in after if left <= 1e-9)
    return now


def stretches_of(jobs: Sequence[Row], extra: Dict[Tuple[str, str], float]) -> List[float]:
    """How many times as long as alone a step of each takes beside the others."""
    return [1 + sum(extra[job["kind"], other["kind"]] for other in jobs if other is not job) for job in jobs]


def _markdown(rows: Dict[str, List[Row]], solo: Dict[str, Solo], found: Sequence[Mode]) -> str:
    jobs = max((jobs_in(rows[mode.name]) for mode in found), key=len)
    work = sum(_solo_s(job, solo) for job in jobs)
    alone = [job for job in jobs_in(rows.get("exclusive", [])) if "done" in job]
    startup = statistics.fmean(job["ready"] - job["began"] for job in alone) if alone else None
    whole = None if startup is None else work + startup * len(jobs)
    watts = [solo[job["kind"]].power_w for job in jobs]
    energy = None
    if None not in watts:
        energy = sum(_solo_s(job, solo) * (solo[job["kind"]].power_w or 0) for job in jobs) / 1000
    lines = [
        "# The same trace in each way of sharing",
        "",
        f"{len(jobs)} training jobs of two users on one GPU under real Slurm, all queued at once.",
        "Rows: `rehearsal/`. Start-up (Python, CUDA, the model) is left out where a row says so.",
        "",
        "![When each job started up and trained](rehearsal.svg)",
        "",
        "| | exclusive | " + " | ".join(mode.name for mode in found) + " |",
        "|---|---|" + "---|" * len(found),
        _line("makespan, s", whole, [mode.makespan_s for mode in found]),
        _line("time with a job training, s (start-up left out)", work, [mode.busy_s for mode in found]),
        _line("the same of an ideal packer in that mode, s", work, [mode.ideal_s for mode in found]),
        _line("gain, start-up left out, %", 0.0, [100 * (1 - mode.busy_s / work) for mode in found]),
        _line("gain of the ideal packer, %", 0.0, [100 * (1 - mode.ideal_s / work) for mode in found]),
        _line("work done while jobs wait and none starts up", 1.0, [mode.rate for mode in found], 2),
        _line("seconds of which that is the mean", None, [mode.calm_s for mode in found]),
        _line("work of the ideal packer", 1.0, [work / mode.ideal_s for mode in found], 2),
        _line("mean completion time, s", None, [mode.completion_s for mode in found]),
        _line("mean waiting time, s", None, [mode.waiting_s for mode in found]),
        _line("mean start-up, s", startup, [mode.startup_s for mode in found]),
        _line("median slowdown of training", 1.0, [mode.median_slowdown for mode in found], 2),
        _line("worst slowdown", 1.0, [mode.worst_slowdown for mode in found], 2),
        _line("energy, kJ", _with_startup(rows, energy, startup, len(jobs)),
              [mode.energy_kj for mode in found]),
        _line("energy above idle, kJ (exclusive: training only)", _above(rows, energy, work),
              [mode.above_idle_kj for mode in found]),
        _line("SM activity while a job trains, %", None, [_percent(mode.sm_busy) for mode in found]),
        _line("jobs that failed", 0.0, [float(mode.failed) for mode in found], 0),
        "",
        "Exclusive time is each job's steps at its own solo rate, plus the start-up of a job alone.",
        "Its energy is that of the solo steps, and idle power during start-up.",
    ]  # fmt: skip
    for job in alone:
        took, computed = job["done"] - job["ready"], _solo_s(job, solo)
        lines.append(
            f"Checked with a job that ran alone under Slurm: {job['kind']} trained {took:.2f} s; "
            f"computed {computed:.2f} s ({100 * (computed / took - 1):+.1f} %)."
        )
    lines += [
        "The ideal packer knows each job's memory and how much each kind slowed each other in that mode",
        f"(least squares over measured intervals): the best of {_ORDERS + 1} orders, any number at once.",
        "",
        "| kind | step alone, ms | SM activity alone, % | power alone, W |",
        "|---|---|---|---|",
    ]
    for kind, one in solo.items():
        sm, power = number(_percent(one.sm), 0), number(one.power_w, 0)
        lines.append(f"| {kind} | {1000 / one.steps_per_s:.1f} | {sm} | {power} |")
    return "\n".join([*lines, *_fault_lines(rows), *oom_lines(rows), *_HOW, ""])


def oom_lines(rows: Dict[str, List[Row]]) -> List[str]:
    """What became of jobs that asked for too little."""
    told = [(mode, row) for mode in sorted(rows, reverse=True) for row in rows[mode] if "oom" in row]
    if not told:
        return []
    lines = ["", "## Jobs that asked for too little", ""]
    lines += ["| mode | job | run | shards | its end |", "|---|---|---|---|---|"]
    for mode, row in told:
        for one in row["runs"]:
            end = one["verdict"] or f"exit code {one['exit_code']}"
            lines.append(f"| {mode} | {row['oom']} | {one['restarts'] + 1} | {one['shards']} | {end} |")
    return lines


def _fault_lines(rows: Dict[str, List[Row]]) -> List[str]:
    told = [row for mode in MODES for row in rows.get(mode, []) if "fault" in row and "error" in row]
    if not told:
        return []
    lines = ["", "## A fault at the shared server", "", "| job | its end | root's record |", "|---|---|---|"]
    for row in told:
        record = row["record"]
        events = [f"{event['kind']} with job {event.get('with')}" for event in record.get("events") or []]
        hints = ", ".join(record.get("hints") or []) or "–"
        seen = ", ".join(events) or "no event"
        lines.append(f"| {row['fault']} | {row['error'] or 'lived'} | {hints}; {seen} |")
    return lines


def picture(rows: Dict[str, List[Row]], ends: Mapping[str, float]) -> str:
    """Each job of the modes named in `ends`, in time, up to the latest of these ends."""
    blocks = [(name, sorted(jobs_in(rows[name]), key=lambda job: job["job"])) for name in ends]
    height = 70 + sum(26 + 16 * len(jobs) for _, jobs in blocks)
    longest = max(ends.values())
    frame = Frame(900, height, 120, 20, 30, 40, (0.0, longest), (0.0, 1.0))
    parts = [frame.column(second, f"{second} s") for second in range(0, int(longest) + 1, 10)]
    legend = (_GREY, "starts up"), (_COLOURS[0], "first user trains"), (_COLOURS[1], "second user trains")
    parts += [key(frame.left + 160 * place, 8, *entry) for place, entry in enumerate(legend)]
    top = 44.0
    for name, jobs in blocks:
        parts.append(text(8, top, name, "ink"))
        top += 10
        for job in jobs:
            parts.append(text(frame.left - 8, top + 10, job["kind"], anchor="end"))
            ready = job.get("ready", _end(job))
            for began, died, _ in job.get("failed", []):
                parts.append(_bar(frame, began, died, top, _GREY))
            parts.append(_bar(frame, job["began"], ready, top, _GREY))
            parts.append(_bar(frame, ready, _end(job) or ends[name], top, _COLOURS[job["user"]]))
            top += 16
        top += 16
    title = "When each job of two users started up (grey) and trained (blue, orange)"
    return document(900, height, title, parts, LIGHT_AND_DARK)


def _bar(frame: Frame, low: float, high: float, top: float, colour: str) -> str:
    x, width = frame.x(low), max(0.5, frame.x(high) - frame.x(low))
    return f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="12" fill="{colour}"/>'


def _with_startup(
    rows: Dict[str, List[Row]], energy: Optional[float], startup: Optional[float], jobs: int
) -> Optional[float]:
    """Training energy, and idle power while each job in turn starts up."""
    idle = next((row["idle"].get("power_w") for row in rows.get("solo", []) if "idle" in row), None)
    if energy is None or idle is None or startup is None:
        return None
    return float(energy + idle * startup * jobs / 1000)


def _above(rows: Dict[str, List[Row]], energy: Optional[float], work: float) -> Optional[float]:
    idle = next((row["idle"].get("power_w") for row in rows.get("solo", []) if "idle" in row), None)
    return None if energy is None or idle is None else energy - idle * work / 1000


def _line(name: str, alone: Optional[float], values: Sequence[Optional[float]], digits: int = 1) -> str:
    cells = [number(value, digits) for value in (alone, *values)]
    return f"| {name} | " + " | ".join(cells) + " |"


def number(value: Optional[float], digits: int) -> str:
    """For a table."""
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(value: Optional[float]) -> Optional[float]:
    return None if value is None else 100 * value


def jobs_in(rows: Sequence[Row]) -> List[Row]:
    """The rows of jobs."""
    return [row for row in rows if "job" in row]


def _end(job: Row) -> float:
    return float(job.get("done", job.get("died", 0.0)))


def _solo_s(job: Row, solo: Dict[str, Solo]) -> float:
    return float(job["steps"] / solo[job["kind"]].steps_per_s)
