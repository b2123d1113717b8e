"""What sharing gains by default: 24 jobs of three users through real Slurm on one GPU, one server for all.

As root, on a machine with an NVIDIA GPU, torch and MPS, from the repository's root:

    python3 lab/gpu/rehearsal.py --out DIR             solo rates first, then the queue
    python3 lab/gpu/rehearsal.py --out DIR --figures   what came of it; needs no GPU

Shares are those of `gpusbatch` at `--max-slowdown`, Slurm's settings those of `gpumem setup`. Two jobs need
more than they ask for, run out of memory and come back; two more are ended by scancel while they train. The
same 24 jobs one after another are computed from solo rates, checked with a job that had the GPU alone.
DIR/solo.jsonl and DIR/default.jsonl get rows as they come. `--rehearse` plays it without GPU.
"""

from __future__ import annotations

import sys
import time
from math import ceil
from pathlib import Path
from statistics import fmean, median
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "gpu"))

import rehearsal_jobs
from life_machine import Machine, machine_of, options
from rehearsal_jobs import CONTEXT_GIB, Gauge, Planned, Rows, marks_of, read_rows, submit

from lab.score.short_queue import MEMORY_GIB, QUEUE
from lab.shared_speeds import usual_load
from slurm_gpumem.site.queue_order import flow_settings
from slurm_gpumem.utilization.budget import share_for, worst_of
from slurm_gpumem.utilization.interference import SHARED

GPU_SHARDS = 139
MODE = "default"
SHORT = (3, 8)
"""Jobs that need more than they ask for."""
MORE_GIB = 6
OWN_MIB = {"small": 146, "text16": 1314, "conv32": 1530, "conv256": 12470, "text128": 6140}
"""What PyTorch reserved for each kind on an H200; what else it claims it holds idle."""
CANCELLED = (("small", 60), ("text16", 60))
"""Ended by scancel some seconds after they have begun to train; submitted behind the first eight."""
TRAINS_S = 5.0
ALONE = (("small", 5),)
"""Has the GPU to itself, before the queue."""
INTERVALS = "sched_interval=2,bf_interval=2"
KEEPS_TIME = {"AccountingStorageType": "accounting_storage/slurmdbd"}
"""As at a site that has one. Here is none: no job waits for the hour after which age would count."""


class Figures(NamedTuple):
    """Of one run; seconds, kJ."""

    jobs: int
    lost: int
    makespan: float
    completion: float
    slow: Sequence[float]
    energy: Optional[float]
    whole_makespan: float
    whole_completion: float
    whole_energy: Optional[float]
    of_bound: float
    """The largest slowdown as a part of what was predicted at most for that job and its share."""
    saved: float
    """GPU time with a job on it, less than if each had had it alone, with start-up as long as it was."""
    reported: Optional[float]
    """The same by `gpumem report`."""
    came_back: int
    cancelled: int
    victims: int


def asked_shards(memory: int, active: float, step: float, limit: float) -> int:
    """What gpusbatch asks for where a job takes that many shards of memory."""
    share = share_for(usual_load(active, step), limit, limit, SHARED).share
    return max(memory, min(ceil(share * GPU_SHARDS), GPU_SHARDS))


def planned(solo: Sequence[Dict[str, Any]], limit: float, scale: float, count: int) -> List[Planned]:
    """The first jobs of the queue with their shares, and those that will be cancelled."""
    rows = {row["kind"]: row for row in solo if "steps_per_s" in row}

    def job(name: str, kind: str, seconds: float, user: int, short: bool = False) -> Planned:
        row, memory = rows[kind], MEMORY_GIB[kind]
        rate, active = row["steps_per_s"], row.get("sm") or 0.0
        shards = asked_shards(memory + CONTEXT_GIB, active, 1 / rate, limit)
        ballast = (shards + MORE_GIB) * 1024 if short else max(0, memory * 1024 - OWN_MIB[kind])
        return Planned(name, kind, user, max(3, round(seconds * rate)), shards, ballast, memory, active)

    jobs = [
        job(f"{place:02d}-{kind}", kind, scale * seconds, place % 3, place in SHORT)
        for place, (kind, seconds) in enumerate(QUEUE[:count])
    ]
    ended = [job(f"cancel{n}-{kind}", kind, seconds, n) for n, (kind, seconds) in enumerate(CANCELLED)]
    return [*jobs[:8], *ended, *jobs[8:]]


def alone(machine: Machine, rows: Rows, gauge: Gauge, solo: Sequence[Dict[str, Any]]) -> None:
    """Jobs that have the GPU to themselves: start-up, and whether the solo rates hold under Slurm."""
    rates = {row["kind"]: row["steps_per_s"] for row in solo if "steps_per_s" in row}
    played = machine.ledger is not None
    for kind, seconds in ALONE:
        steps, memory = max(3, round(seconds * rates[kind])), MEMORY_GIB[kind]
        name = f"alone-{kind}"
        before, began = gauge.energy_j(), time.time()
        submit(machine, Planned(name, kind, 0, steps, 1, 0, memory, 0.0), "exclusive", played)
        machine.ended([name], 60)
        marks, after = marks_of(machine, "exclusive", name), gauge.energy_j()
        energy = None if before is None or after is None else after - before
        said = {key: marks.get(key, began) - began for key in ("began", "ready", "done")}
        rows.say(alone=kind, steps=steps, energy_j=energy, seconds=time.time() - began, **said)


def queue(machine: Machine, rows: Rows, gauge: Gauge, jobs: Sequence[Planned], limit_s: float) -> None:
    """Submit all at once, cancel the two when they train, watch until the last has ended."""
    played = machine.ledger is not None
    idle, before, began = gauge.watch(1.5), gauge.energy_j(), time.time()
    submitted = {}
    for job in jobs:
        submitted[job.name] = time.time() - began
        submit(machine, job, MODE, played, comment=",oom=requeue")
    told: set[str] = set()
    while len(told) < len(jobs) and time.time() - began < limit_s:
        time.sleep(0.5)
        rows.say(t=round(time.time() - began, 2), **gauge.sample())
        for job in jobs:
            if job.name in told:
                continue
            marks = marks_of(machine, MODE, job.name)
            ends = job.name.startswith("cancel")
            if ends and "ready" in marks and time.time() - marks["ready"] > TRAINS_S:
                machine.cancel([job.name])
                marks["cancelled"] = time.time()
            came_back = "died" in marks and job.name in {f"{n:02d}-{QUEUE[n][0]}" for n in SHORT}
            if "done" in marks or "cancelled" in marks or ("died" in marks and not came_back):
                told.add(job.name)
                _tell(rows, job, marks, submitted[job.name], began)
    after, ended = gauge.energy_j(), time.time()
    missing = [job for job in jobs if job.name not in told]
    for job in missing:
        _tell(rows, job, marks_of(machine, MODE, job.name), submitted[job.name], began)
    machine.cancel([job.name for job in missing])
    machine.ended([job.name for job in jobs], 30)
    energy = None if before is None or after is None else round(after - before, 1)
    names = [job.name for job in missing]
    rows.say(summary=True, mode=MODE, span_s=ended - began, energy_j=energy, idle=idle, missing=names)


def _tell(rows: Rows, job: Planned, marks: Dict[str, Any], submitted: float, began: float) -> None:
    about = {"kind": job.kind, "user": job.user, "steps": job.steps, "shards": job.shards}
    more = {"cancelled": round(marks["cancelled"] - began, 3)} if "cancelled" in marks else {}
    known = {**about, "memory_gib": job.memory_gib, "submitted": round(submitted, 3), **more}
    rows.say(job=job.name, **known, **rehearsal_jobs.relative(marks, began))


def figures(out: Path) -> Figures:
    """What the rows of a folder say."""
    mine, solo = read_rows(out / f"{MODE}.jsonl"), read_rows(out / "solo.jsonl")
    kinds = {row["kind"]: row for row in solo if "steps_per_s" in row}
    told = [row for row in mine if "job" in row]
    ended = [job for job in told if job["job"].startswith("cancel")]
    jobs = sorted((job for job in told if job not in ended), key=lambda job: job["job"])
    done = [job for job in jobs if "done" in job]
    (summary,) = [row for row in mine if row.get("summary")]
    startup = fmean(row["ready"] - row["began"] for row in mine if "alone" in row)
    idle = next(row["idle"]["power_w"] for row in solo if "idle" in row)
    work = [job["steps"] / kinds[job["kind"]]["steps_per_s"] for job in jobs]
    ends, clock = [], 0.0
    for seconds in work:
        clock += startup + seconds
        ends.append(clock)
    watts = [kinds[job["kind"]].get("power_w") for job in jobs]
    known = idle is not None and None not in watts
    whole = sum(a * b for a, b in zip(work, watts)) + idle * startup * len(jobs) if known else None
    before = sum(row["done"] - row["began"] for row in mine if "alone" in row)
    alone_s = sum(
        job["ready"]
        - job["began"]
        + job.get("trained", len(job.get("ends", ()))) / kinds[job["kind"]]["steps_per_s"]
        for job in told
        if "ready" in job
    )
    last = max((job["done"] for job in done), default=0.0)
    limit = next(row["max_slowdown"] for row in mine if "max_slowdown" in row)
    return Figures(
        jobs=len(jobs),
        lost=len(jobs) - len(done),
        makespan=last,
        completion=fmean(job["done"] - job["submitted"] for job in done),
        slow=sorted(_slowdown(job, kinds) for job in done),
        of_bound=max(_slowdown(job, kinds) / _bound(job, kinds, limit) for job in done),
        energy=None if summary["energy_j"] is None else summary["energy_j"] / 1000,
        whole_makespan=ends[-1],
        whole_completion=fmean(ends),
        whole_energy=None if whole is None else whole / 1000,
        saved=1 - (_covered_s(_held(told, last)) + before) / (alone_s + before),
        reported=next(
            (row["report"].get("saved") for row in mine if isinstance(row.get("report"), dict)), None
        ),
        came_back=sum(bool(job.get("failed")) and "done" in job for job in jobs),
        cancelled=len([job for job in ended if "cancelled" in job]),
        victims=sum("illegal" in f"{job.get('failed')} {job.get('error')}" for job in jobs),
    )


def _slowdown(job: Dict[str, Any], kinds: Dict[str, Any]) -> float:
    return float((job["done"] - job["ready"]) * kinds[job["kind"]]["steps_per_s"] / job["steps"])


def _bound(job: Dict[str, Any], kinds: Dict[str, Any], limit: float) -> float:
    """By today's model, with priorities."""
    kind = kinds[job["kind"]]
    load = usual_load(kind["sm"], 1 / kind["steps_per_s"])
    return worst_of(load, job["shards"] / GPU_SHARDS, limit, SHARED)


def _held(jobs: Sequence[Dict[str, Any]], last: float) -> List[Tuple[float, float]]:
    """When each job had its share, runs that failed and were cancelled, too."""
    spans = [(job["began"], job.get("done", job.get("cancelled", last))) for job in jobs if "began" in job]
    return spans + [(began, died) for job in jobs for began, died, _ in job.get("failed", [])]


def _covered_s(spans: Sequence[Tuple[float, float]]) -> float:
    """Seconds in which at least one of them runs."""
    covered, until = 0.0, float("-inf")
    for low, high in sorted(spans):
        covered += max(0.0, high - max(low, until))
        until = max(until, high)
    return covered


def lines(found: Figures) -> List[str]:
    """The figures for people."""
    kj = lambda value: "–" if value is None else f"{value:.1f} kJ"  # noqa: E731
    part = lambda mine, whole: f"{mine:.1f} of {whole:.1f} s ({100 * mine / whole:.0f} %)"  # noqa: E731
    return [
        f"jobs {found.jobs}, lost {found.lost}, out of memory and back {found.came_back}",
        f"makespan {part(found.makespan, found.whole_makespan)}",
        f"mean time to completion {part(found.completion, found.whole_completion)}",
        f"slowdown of training: median {median(found.slow):.2f}, worst {found.slow[-1]:.2f}; "
        f"at most {found.of_bound:.2f} of the job's own bound",
        f"energy {kj(found.energy)}, one after another {kj(found.whole_energy)}",
        f"GPU time saved {100 * found.saved:.0f} %, by gpumem report "
        + ("–" if found.reported is None else f"{100 * found.reported:.0f} %"),
        f"scancels {found.cancelled}, victims {found.victims}",
    ]


def main() -> int:
    """The whole rehearsal, or its figures."""
    parser = options(__doc__, "grehearsal")
    parser.add_argument("--figures", action="store_true", help="print what the rows in --out say")
    parser.add_argument("--max-slowdown", type=float, default=3.5)
    parser.add_argument("--scale", type=float, default=1.0, help="times the seconds that each job trains")
    parser.add_argument("--jobs", type=int, default=len(QUEUE), help="only the first ones of the queue")
    parser.add_argument("--limit", type=float, default=330.0, help="seconds for the queue")
    parser.add_argument("--open", action="store_true", help="users can load torch: not tried again")
    args = parser.parse_args()
    if args.figures:
        print("\n".join(lines(figures(args.out))))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    machine, down = machine_of(args)
    if not args.rehearse:
        import torch  # noqa: F401 - once, before the forks
    solo_file = args.out / "solo.jsonl"
    gauge = rehearsal_jobs.no_gauge() if args.rehearse else Gauge(None, machine.node)
    rehearsal_jobs.solo(Rows(solo_file), gauge, args.rehearse, window=2.0)
    solo = read_rows(solo_file)
    machine.prepare()
    rehearsal_jobs.copy_workers(machine)
    opened = {} if args.open else machine.open_to_users()
    try:
        hooks = machine.state / "hooks"
        with open(hooks / "hooks.conf", "a", encoding="utf-8") as file:
            file.write(f"recovery_log={machine.state}/recovery.log\n")
        conf = {"EpilogSlurmctld": f"{hooks}/epilog_slurmctld.sh", **flow_settings(KEEPS_TIME)}
        conf["SchedulerParameters"] += f",{INTERVALS}"
        more = "".join(f"{key}={value}\n" for key, value in conf.items())
        machine.start({"mps": "shared", "activity_every_s": 1, "idle_exit_s": 6}, more)
        rows = Rows(args.out / f"{MODE}.jsonl")
        rows.say(opened=opened, scale=args.scale, max_slowdown=args.max_slowdown, conf=conf)
        gauge = Gauge(machine.ledger, machine.node)
        alone(machine, rows, gauge, solo)
        queue(machine, rows, gauge, planned(solo, args.max_slowdown, args.scale, args.jobs), args.limit)
        rehearsal_jobs.report(machine, rows)
        machine.collect()
        log = machine.state / "recovery.log"
        rows.say(recovery_log=log.read_text()[-1500:] if log.exists() else "")
    finally:
        machine.stop(down)
    print("\n".join(lines(figures(args.out))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
