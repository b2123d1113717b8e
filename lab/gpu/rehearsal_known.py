"""Plain `sbatch` twice, in mode `known`: the queue of `rehearsal.py` with whole GPUs, then sharing by itself.

As root, on a machine with an NVIDIA GPU, torch and MPS, from the repository's root:

    python3 lab/gpu/rehearsal_known.py --out DIR                        both rounds, one server for all
    python3 lab/gpu/rehearsal_known.py --out DIR --mps per-user --known DIR1/known.json    the second alone
    python3 lab/gpu/rehearsal_known.py --out DIR --sweep 24             equal tasks as one array
    python3 lab/gpu/rehearsal_known.py --out DIR --figures              what came of it; needs no GPU

Scripts ask for `--gres=gpu:1` and say nothing of ours. In the first round each job trains for the same time;
in the second it does as many steps. Jobs that the first round did not come to are left out of both.
DIR/known.jsonl (DIR/sweep.jsonl) gets rows as they come, DIR/known.json the jobs' records.
`--rehearse` plays it without a GPU.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any, Dict, List, NamedTuple, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "gpu"))

import rehearsal_jobs
from life_machine import REPOSITORY, LifeError, Machine, machine_of, options, run, until
from rehearsal import INTERVALS, KEEPS_TIME, OWN_MIB
from rehearsal_jobs import Gauge, Rows, marks_of, read_rows, relative

from lab.score.short_queue import MEMORY_GIB, QUEUE
from slurm_gpumem.formats.job_record import parse_job_record, write_job_record
from slurm_gpumem.site.queue_order import flow_settings

FIRST, SECOND, SWEEP = "first", "second", "sweep"
SWEEP_STEPS = {"small": 8000, "text16": 1700, "conv32": 3200}
"""Of a task of the array: 20 s of training alone where the H200 was fastest, up to 28 s."""
_ENDS_S = 12.0
"""Kept for the last of a round: records, logs, daemons that stop."""
_SAID = re.compile(r"expected slowdown while sharing ([\d.]+)x, worst case ([\d.]+)x")
_JOB = """\
#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --time=10
unset LD_LIBRARY_PATH
export PYTHONDONTWRITEBYTECODE=1
"""


class Job(NamedTuple):
    """One of the queue."""

    name: str
    kind: str
    user: int
    steps: int
    """0: as many as it does in the seconds that it trains."""


def configured(machine: Machine, mps: str, limit: float, kept: bool) -> None:
    """Slurm, our hooks and the filter of plain sbatch, with the settings that setup writes for a new site."""
    hooks = machine.state / "hooks"
    with open(hooks / "hooks.conf", "a", encoding="utf-8") as file:
        file.write(f"recovery_log={machine.state}/recovery.log\n")
    conf = {"EpilogSlurmctld": f"{hooks}/epilog_slurmctld.sh", **flow_settings(KEEPS_TIME)}
    conf["SchedulerParameters"] += f",{INTERVALS}"
    conf.update(CliFilterPlugins="lua", FirstJobId="1001" if kept else "1")
    lines = "".join(f"{key}={value}\n" for key, value in conf.items())
    machine.start({"mps": mps, "activity_every_s": 1, "idle_exit_s": 6}, lines)
    with open(machine.state / "gpumem.toml", "a", encoding="utf-8") as file:
        file.write(f'[sharing]\nmode = "known"\nmax_slowdown = {limit}\nunknown_activity = 0.5\n')
    beside = Path(machine.env["SLURM_CONF"]).parent
    for name in ("cli_filter.lua", "gpumem_filter.lua"):
        (beside / name).write_text((REPOSITORY / "lua" / name).read_text())
    (beside / "gpumem").mkdir(exist_ok=True)
    (beside / "gpumem" / "hooks.conf").write_text(f"python={machine.venv_python}\n")
    machine.env["GPUMEM_SITE_CONFIG"] = f"{machine.state}/gpumem.toml"


def home(machine: Machine, user: int) -> Path:
    """A user's own home, where what is remembered of their jobs lies."""
    _, uid, gid = machine.users[user]
    made = machine.state / f"home{user}"
    if not made.exists():
        made.mkdir()
        os.chown(made, uid, gid)
    return made


def restore(machine: Machine, kept: Sequence[str]) -> None:
    """Records of an earlier round into a new machine's store."""
    for text in kept:
        write_job_record(machine.spool, parse_job_record(text.encode()))


def submit(machine: Machine, job: Job, stem: str, words: Sequence[str], *, array: str = "") -> Dict[str, Any]:
    """Plain sbatch by the job's user; what the filter said."""
    _, uid, gid = machine.users[job.user]
    script = Path(f"{stem}.sh")
    command = [sys.executable, f"{machine.work}/rehearsal_worker.py", job.kind, *words]
    # Quoted as a whole, $ stays what the shell makes of it.
    script.write_text(
        _JOB + "exec " + " ".join(word if "$" in word else shlex.quote(word) for word in command) + "\n"
    )
    place = home(machine, job.user)
    env = {
        **machine.env,
        "HOME": str(place),
        "GPUMEM_INDEX": str(place / "index"),
        "USER": machine.users[job.user][0],
    }
    env.pop("XDG_CACHE_HOME", None)
    argv = ["sbatch", "--parsable", f"--job-name={job.name}", f"--chdir={machine.work}"]
    argv += [
        f"--output={stem}{'-%a' if array else ''}.out",
        *([f"--array={array}"] if array else []),
        str(script),
    ]
    began = time.time()
    done = run(argv, 20, env=env, cwd=machine.work, user=uid, group=gid, extra_groups=[])
    if done.returncode or not done.stdout.strip().isdigit():
        raise LifeError(f"sbatch of {job.name}: {done.stderr[-300:]}")
    machine.jobs[job.name] = int(done.stdout)
    shown = run(["scontrol", "show", "job", done.stdout.strip()], 10, env=machine.env).stdout
    gres = re.search(r"TresPerNode=(\S+)", shown)
    seconds = round(time.time() - began, 2)
    return {
        "id": machine.jobs[job.name],
        "said": done.stderr,
        "gres": gres[1] if gres else "",
        "took_s": seconds,
    }


def words_for(machine: Machine, job: Job, stem: str, seconds: float, name: str) -> List[str]:
    """A worker's arguments; `name` is what tells this job from others of its kind."""
    ballast = max(0, MEMORY_GIB[job.kind] * 1024 - OWN_MIB[job.kind])
    words = [f"--steps={job.steps}", f"--seconds={seconds:g}", f"--ballast={ballast}", f"--place={name}"]
    return [*words, f"--out={stem}.marks", *([f"--played={machine.ledger}"] if machine.ledger else [])]


def play(
    machine: Machine, rows: Rows, gauge: Gauge, jobs: Sequence[Job], mode: str, seconds: float, until_s: float
) -> List[Dict[str, Any]]:
    """Submit all at once, watch until the last has ended or the time is over; a row for each."""
    before, began = gauge.energy_j(), time.time()
    about: Dict[str, Dict[str, Any]] = {}
    for job in jobs:
        stem = f"{machine.work}/{mode}-{job.name}"
        submitted = time.time() - began
        about[job.name] = submit(machine, job, stem, words_for(machine, job, stem, seconds, job.name))
        about[job.name]["submitted"] = round(submitted, 3)
    told: Dict[str, Dict[str, Any]] = {}
    while len(told) < len(jobs) and time.time() < until_s:
        time.sleep(0.5)
        rows.say(round=mode, t=round(time.time() - began, 2), **gauge.sample())
        for job in jobs:
            if job.name not in told:
                marks = marks_of(machine, mode, job.name)
                if "done" in marks:
                    told[job.name] = {
                        **about[job.name],
                        **_told(rows, mode, job, about[job.name], marks, began),
                    }
    for job in jobs:
        if job.name not in told:
            _told(rows, mode, job, about[job.name], marks_of(machine, mode, job.name), began)
    after = gauge.energy_j()
    energy = None if before is None or after is None else round(after - before, 1)
    missing = [job.name for job in jobs if job.name not in told]
    rows.say(round=mode, summary=True, span_s=round(time.time() - began, 2), energy_j=energy, missing=missing)
    machine.cancel(missing)
    machine.ended([job.name for job in jobs], 20)
    return list(told.values())


def _told(
    rows: Rows, mode: str, job: Job, about: Dict[str, Any], marks: Dict[str, Any], began: float
) -> Dict[str, Any]:
    ends = len(marks["ends"])
    row = {
        "job": job.name,
        "kind": job.kind,
        "user": job.user,
        **about,
        **relative(marks, began),
        "trained": ends,
    }
    rows.say(round=mode, **{key: value for key, value in row.items() if key != "ends"})
    return row


def sweep(machine: Machine, rows: Rows, gauge: Gauge, args: Any, until_s: float) -> None:
    """One array of equal tasks; each marks for itself."""
    job = Job(SWEEP, args.kind, 0, 0)
    stem = f"{machine.work}/{SWEEP}-task"
    words = words_for(machine, job, f"{stem}$SLURM_ARRAY_TASK_ID", args.seconds, "sweep")
    words[0] = f"--steps={SWEEP_STEPS[args.kind]}"
    before, began = gauge.energy_j(), time.time()
    said = submit(machine, job, stem, words, array=f"0-{args.sweep - 1}")
    rows.say(round=SWEEP, tasks=args.sweep, kind=args.kind, **said)
    told: Dict[int, bool] = {}
    while len(told) < args.sweep and time.time() < until_s:
        time.sleep(0.5)
        rows.say(round=SWEEP, t=round(time.time() - began, 2), **gauge.sample())
        for task in range(args.sweep):
            marks = marks_of(machine, SWEEP, f"task{task}") if task not in told else {}
            if "done" in marks:
                told[task] = True
                about = {"job": f"task{task}", "kind": args.kind, "user": 0, "submitted": 0.0}
                rows.say(round=SWEEP, **about, **_short(marks, began))
    for task in set(range(args.sweep)) - set(told):
        rows.say(
            round=SWEEP,
            job=f"task{task}",
            kind=args.kind,
            **_short(marks_of(machine, SWEEP, f"task{task}"), began),
        )
    shown = run(
        ["squeue", "-h", "-t", "all", "-o", "%i %T %b %M %R"], 10, env=machine.env
    ).stdout.splitlines()
    after = gauge.energy_j()
    energy = None if before is None or after is None else round(after - before, 1)
    rows.say(round=SWEEP, summary=True, span_s=round(time.time() - began, 2), energy_j=energy, queue=shown)
    machine.cancel([SWEEP])
    machine.ended([SWEEP], 20)


def _short(marks: Dict[str, Any], began: float) -> Dict[str, Any]:
    found = relative(marks, began)
    return {**{key: value for key, value in found.items() if key != "ends"}, "trained": len(found["ends"])}


def lines(out: Path) -> List[str]:
    """What the rows say, for people."""
    found = [row for name in ("known", SWEEP) for row in read_rows(out / f"{name}.jsonl")]
    rounds = {
        mode: {
            row["job"]: row for row in found if row.get("round") == mode and "done" in row and "job" in row
        }
        for mode in (FIRST, SECOND, SWEEP)
    }
    alone = rounds[FIRST] or {row["job"]: row for row in found if row.get("round") == "alone"}
    said = [_of_round(mode, rounds[mode], found) for mode in (FIRST, SECOND, SWEEP) if rounds[mode]]
    both = sorted(set(alone) & set(rounds[SECOND]))
    if both:
        slow = {name: _rate(alone[name]) / _rate(rounds[SECOND][name]) for name in both}
        said.append(_slower(slow.values()))
        for name in both:
            row = rounds[SECOND][name]
            promised = _SAID.search(row["said"].replace("\n", " "))
            over = promised and slow[name] > float(promised[2]) + 0.05
            words = f"said {promised[1]}, at most {promised[2]}" if promised else "said nothing"
            said.append(
                f"  {name:<12} user {row['user']} {row['gres']:<18} {words}; got {slow[name]:.2f}"
                + " ABOVE" * bool(over)
            )
    if rounds[SWEEP]:
        said += _of_sweep(rounds[SWEEP], found)
    return said


def _of_round(mode: str, jobs: Dict[str, Dict[str, Any]], found: Sequence[Dict[str, Any]]) -> str:
    failed = [row for row in found if row.get("round") == mode and (row.get("failed") or "died" in row)]
    (summary,) = [row for row in found if row.get("round") == mode and row.get("summary")][-1:] or [{}]
    return (
        f"{mode}: {len(jobs)} jobs done, not done {len(summary.get('missing') or [])}, makespan "
        f"{max(row['done'] for row in jobs.values()):.1f} s, mean completion "
        f"{fmean(row['done'] - row['submitted'] for row in jobs.values()):.1f} s, energy "
        f"{summary.get('energy_j')} J, out of memory or otherwise failed {len(failed)}"
    )


def _of_sweep(tasks: Dict[str, Dict[str, Any]], found: Sequence[Dict[str, Any]]) -> List[str]:
    first = min(tasks.values(), key=lambda row: row["began"])
    count = next(row["tasks"] for row in found if "tasks" in row)
    each = first["done"] - first["began"]
    slow = [_rate(first) / _rate(row) for row in tasks.values() if row is not first]
    return [
        f"  first task {each:.1f} s with start-up; {count} with whole GPUs: {count * each:.0f} s",
        *([_slower(slow)] if slow else []),
    ]


def _slower(values: Any) -> str:
    slow = sorted(values)
    return f"  slowdown of training: median {median(slow):.2f}, worst {slow[-1]:.2f}"


def _rate(row: Dict[str, Any]) -> float:
    """Steps a second while it trained."""
    return float(row["trained"] / (row["done"] - row["ready"]))


def main() -> int:
    """The rounds that are asked for, or their figures."""
    parser = options(__doc__, "grehearsal")
    parser.add_argument("--figures", action="store_true", help="print what the rows in --out say")
    parser.add_argument("--mps", default="shared", choices=("shared", "per-user", "timeslice"))
    parser.add_argument("--max-slowdown", type=float, default=3.5)
    parser.add_argument("--jobs", type=int, default=len(QUEUE), help="only the first ones of the queue")
    parser.add_argument("--seconds", type=float, default=13.0, help="that a job of the first round trains")
    parser.add_argument("--first", type=float, default=330.0, help="seconds for the first round")
    parser.add_argument("--limit", type=float, default=575.0, help="seconds for all")
    parser.add_argument("--known", type=Path, help="known.json of a first round: only the second is played")
    parser.add_argument("--sweep", type=int, default=0, help="tasks of an array, instead of the rounds")
    parser.add_argument("--kind", default="small", choices=sorted(SWEEP_STEPS), help="of those tasks")
    args = parser.parse_args()
    if args.figures:
        print("\n".join(lines(args.out)))
        return 0
    until_s = time.time() + args.limit - _ENDS_S
    args.out.mkdir(parents=True, exist_ok=True)
    machine, down = machine_of(args)
    machine.out = machine.state / "out"
    machine.prepare()
    rehearsal_jobs.copy_workers(machine)
    opened = machine.open_to_users()
    rows = Rows(args.out / f"{SWEEP if args.sweep else 'known'}.jsonl")
    try:
        configured(machine, args.mps, args.max_slowdown, bool(args.known))
        rows.say(opened=opened, mps=args.mps, max_slowdown=args.max_slowdown, seconds=args.seconds)
        gauge = Gauge(machine.ledger, machine.node)
        if args.sweep:
            sweep(machine, rows, gauge, args, until_s)
        else:
            _rounds(machine, rows, gauge, args, until_s)
        rehearsal_jobs.report(machine, rows)
        log = machine.state / "recovery.log"
        rows.say(recovery_log=log.read_text()[-1500:] if log.exists() else "")
    finally:
        # In one file: of the folder that comes back from a machine, few are kept.
        machine.collect()
        shutil.make_archive(str(args.out / "logs"), "gztar", machine.out)
        machine.stop(down)
    print("\n".join(lines(args.out)))
    return 0


def _rounds(machine: Machine, rows: Rows, gauge: Gauge, args: Any, until_s: float) -> None:
    jobs = [
        Job(f"{place:02d}-{kind}", kind, place % 3, 0) for place, (kind, _) in enumerate(QUEUE[: args.jobs])
    ]
    if args.known:
        known = json.loads(args.known.read_text())
        restore(machine, known["records"])
        done = known["jobs"]
        for row in done:
            rows.say(**{**row, "round": "alone"})
    else:
        done = play(machine, rows, gauge, jobs, FIRST, args.seconds, time.time() + args.first)
        wanted = len(done)
        until(lambda: len(list(machine.spool.glob("*.json"))) >= wanted, 10)
    steps = {row["job"]: row["trained"] for row in done}
    again = [job._replace(steps=steps[job.name]) for job in jobs if job.name in steps]
    if not args.known:
        keep = [{key: value for key, value in row.items() if key != "ends"} for row in done]
        kept = [path.read_text() for path in sorted(machine.spool.glob("*.json"))]
        (args.out / "known.json").write_text(json.dumps({"jobs": keep, "records": kept}))
    play(machine, rows, gauge, again, SECOND, args.seconds, until_s)


if __name__ == "__main__":
    sys.exit(main())
