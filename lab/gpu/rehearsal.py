"""A day at a small site, rehearsed: real Slurm, one GPU, two users, the same trace in each way of sharing.

As root, on a machine with an NVIDIA GPU, torch and MPS, from the repository's root; one mode per command:

    python3 lab/gpu/rehearsal.py --out DIR --mode solo      step time, power, activity of each kind, alone
    python3 lab/gpu/rehearsal.py --out DIR --mode shared    then per-user, timeslice, exclusive
    python3 lab/gpu/rehearsal.py --out DIR --mode limit-shared    shares under max_slowdown, two OOMs
                                                              injected; or limit-per-user
    python3 lab/gpu/rehearsal.py --out DIR --mode report    a page and a picture (--page); needs no GPU

DIR/MODE.jsonl gets a row per job, sample and summary as they come; a mode whose summary is there is not run
again, one that was cut off begins again, and its rows are kept as MODE.cut.jsonl. Each mode runs `solo` first
where its rows are not there. `exclusive` runs a part of the trace one job after the other: it checks the
exclusive time that is computed from the solo steps. Slurm is started by --up (see node_life.py). `--rehearse`
plays it without GPU, with a python3 that all users can start.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "gpu"))

from life_machine import LifeError, Machine, run
from mode_workers import Worker, rate
from rehearsal_limit import asked_shards, write_limit_report
from rehearsal_report import write_report

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.config.schema import SHARING
from slurm_gpumem.node.gpus import find_gpus, standin_gpus
from slurm_gpumem.node.sources.base import SourceError
from slurm_gpumem.node.sources.choose import choose_source

LIMITED = {"limit-shared": "shared", "limit-shared-long": "shared", "limit-per-user": "per-user"}
"""Modes with shares under max_slowdown, and the way of sharing."""
MODES = ("shared", "per-user", "timeslice", *LIMITED)
MEMORY_GIB = {"small": 12, "conv32": 28, "text16": 28, "conv256": 44, "text128": 44}
"""What each kind holds, and asks for: light, medium and heavy jobs, of which four or five fit one GPU."""
SOLO_S, LONG_S = 8.0, 18.0
"""What each job would train alone; in a mode of long jobs."""
TRACE = 2 * ("conv256", "small", "conv32", "text16", "small", "text128", "conv32", "text16")
"""The queue, in this order; the users take turns, the other way round in the second half."""
SUBSET = ("00-conv256", "01-small")
"""The serial check."""
INJECTED = ("03-text16", "04-small")
"""Jobs under a limit that need more than their share: they run out of memory and come back."""
INJECTED_GIB = 6
CONTEXT_GIB = 2
_SCHEDULER = "SchedulerParameters=sched_interval=2,bf_interval=2\n"


class Planned(NamedTuple):
    """One job of the trace."""

    name: str
    kind: str
    user: int
    steps: int
    shards: int
    ballast_mib: int
    memory_gib: int
    """What its owner expects it to hold."""
    sm: float
    """SM activity alone."""


class Rows:
    """A file of JSON lines, written as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists():
            path.replace(path.with_suffix(".cut.jsonl"))
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - open for life

    def say(self, **row: Any) -> None:
        line = json.dumps(row)
        print(line[:240], flush=True)
        self._file.write(line + "\n")
        self._file.flush()


class Gauge:
    """Energy and activity of the GPU."""

    def __init__(self, ledger: Optional[Path], node: str) -> None:
        config = NodeConfig(ledger=ledger)
        gpus = standin_gpus(ledger, node) if ledger else find_gpus(config, node)
        self.uuid = gpus[0].uuid
        self._source = choose_source(config, node, gpus)

    def energy_j(self) -> Optional[float]:
        try:
            return self._source.energy_j(self.uuid)
        except SourceError:
            return None

    def sample(self) -> Dict[str, Any]:
        try:
            found = self._source.sample(self.uuid)
        except SourceError:
            return {}
        return {"sm": found.sm_active, "power_w": found.power_w, "used_mib": found.memory_used_mib}

    def watch(self, seconds: float) -> Dict[str, Optional[float]]:
        """Mean power and SM activity over a while."""
        self.sample()
        began, before = time.monotonic(), self.energy_j()
        time.sleep(seconds)
        after, spent = self.energy_j(), time.monotonic() - began
        power = None if before is None or after is None else round((after - before) / spent, 1)
        return {"power_w": power, "sm": self.sample().get("sm")}


def read_rows(path: Path) -> List[Dict[str, Any]]:
    """All rows that are whole; none without a file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [json.loads(line) for line in lines if line.endswith("}")]


def _steps_per_s(out: Path, kind: str) -> float:
    return float(next(row["steps_per_s"] for row in read_rows(out / "solo.jsonl") if row.get("kind") == kind))


def planned(solo: Sequence[Dict[str, Any]], count: int, solo_s: float) -> List[Planned]:
    """The trace with as many steps as take the time that each kind is to train alone."""
    rows = {row["kind"]: row for row in solo if "steps_per_s" in row}
    jobs = []
    for number, kind in enumerate(TRACE[:count]):
        steps = max(3, round(solo_s * rows[kind]["steps_per_s"]))
        memory, user = MEMORY_GIB[kind], (number + number // 8) % 2
        active = rows[kind].get("sm") or 0.0
        name, ballast = f"{number:02d}-{kind}", memory * 1024 - 8192
        jobs.append(Planned(name, kind, user, steps, memory + CONTEXT_GIB, ballast, memory, active))
    return jobs


def under_limit(
    jobs: Sequence[Planned], solo: Sequence[Dict[str, Any]], limit: float, way: str
) -> List[Planned]:
    """The trace with shares for activity, too, as gpusbatch would ask; the injected ones need more."""
    asked = []
    for job in jobs:
        row = next(row for row in solo if row.get("kind") == job.kind)
        shards = asked_shards(job.shards, job.sm, 1 / row["steps_per_s"], limit, way)
        ballast = (shards + INJECTED_GIB) * 1024 if job.name in INJECTED else job.ballast_mib
        asked.append(job._replace(shards=shards, ballast_mib=ballast))
    return asked


def solo(rows: Rows, gauge: Gauge, played: bool, window: float = 1.6) -> None:
    """Every kind alone on the GPU: step time, power, activity."""
    rows.say(idle=gauge.watch(1.5))
    workers = [Worker(kind, 65534, {"HOME": "/tmp"}, played, build_s=40.0) for kind in MEMORY_GIB]
    built = {worker.name: worker.wait_built().get("seconds") for worker in workers}
    for worker in workers:
        begin = time.monotonic() + 0.3
        worker.train(begin + window + 0.1)
        time.sleep(0.3)
        gauges = gauge.watch(window)
        found = rate(worker.hear(20), begin, begin + window)
        rows.say(kind=worker.name, steps_per_s=found, built_s=built[worker.name], **gauges)
    for worker in workers:
        worker.end()
    rows.say(summary=True)


def submit(
    machine: Machine, job: Planned, mode: str, played: bool, *, fault_after: float = 0.0, comment: str = ""
) -> int:
    """A batch job of the trace; its marks go to work/MODE-NAME.marks."""
    _, uid, gid = machine.users[job.user]
    stem = machine.work / f"{mode}-{job.name}"
    words = f"--steps={job.steps} --ballast={job.ballast_mib} --out={stem}.marks" + " --played" * played
    words += f" --fault-after={fault_after}" if fault_after else ""
    script = Path(f"{stem}.sh")
    script.write_text(
        "#!/bin/bash\nunset LD_LIBRARY_PATH\n"
        f"export HOME={machine.work} PYTHONPATH={machine.package} PYTHONDONTWRITEBYTECODE=1\n"
        f"exec {sys.executable} {machine.work}/rehearsal_worker.py {job.kind} {words}\n"
    )
    whole = mode == "exclusive"
    record = f"rehearsal gpumem/1:est={job.memory_gib * 1024},req={(job.memory_gib + CONTEXT_GIB) * 1024}"
    record += f",by=rehearsal,shards={job.shards},model={job.kind}"
    record += f",sm={round(100 * job.sm)},smby=remembered" if job.sm else ""
    done = run(
        [
            "sbatch",
            "--parsable",
            f"--uid={uid}",
            f"--gid={gid}",
            f"--job-name={job.name}",
            f"--output={stem}.out",
            f"--chdir={machine.work}",
            "--cpus-per-task=1",
            "--time=10",
            "--gres=gpu:1" if whole else f"--gres=shard:{job.shards}",
            f"--comment={record}{comment}",
            str(script),
        ],
        15,
        env=machine.env,
    )
    if done.returncode or not done.stdout.strip().isdigit():
        raise LifeError(f"sbatch of {job.name}: {done.stderr[-300:]}")
    machine.jobs[job.name] = int(done.stdout)
    return machine.jobs[job.name]


def marks_of(machine: Machine, mode: str, name: str) -> Dict[str, Any]:
    """What a job has marked so far, its steps joined."""
    found: Dict[str, Any] = {"ends": [], "failed": []}
    for row in read_rows(machine.work / f"{mode}-{name}.marks"):
        if "began" in row and "died" in found:
            failed = [found.get(key) for key in ("began", "died", "error")]
            found = {"ends": [], "failed": [*found["failed"], failed]}
        found["ends"] += row.pop("ends", [])
        found.update(row)
    return found


def trace(
    machine: Machine, rows: Rows, gauge: Gauge, mode: str, jobs: Sequence[Planned], limit_s: float
) -> None:
    """Submit the whole queue at once and watch until the last job has ended."""
    played = machine.ledger is not None
    idle = gauge.watch(1.5)
    for job in jobs:
        for old in machine.work.glob(f"{mode}-{job.name}.*"):
            old.unlink()
    submitted: Dict[str, float] = {}
    before, began = gauge.energy_j(), time.time()
    for job in jobs:
        submitted[job.name] = time.time()
        more = ",oom=requeue" if mode in LIMITED else ""
        submit(machine, job, mode, played, comment=more)
    told: set[str] = set()

    def tell(job: Planned, marks: Dict[str, Any]) -> None:
        told.add(job.name)
        about = {"kind": job.kind, "user": job.user, "steps": job.steps, "shards": job.shards}
        when = {"memory_gib": job.memory_gib, "submitted": round(submitted[job.name] - began, 3)}
        rows.say(job=job.name, **about, **when, **_relative(marks, began))

    while len(told) < len(jobs) and time.time() - began < limit_s:
        time.sleep(1.0)
        rows.say(t=round(time.time() - began, 2), **gauge.sample())
        for job in jobs:
            marks = marks_of(machine, mode, job.name) if job.name not in told else {}
            comes_back = mode in LIMITED and job.name in INJECTED
            if "done" in marks or ("died" in marks and not comes_back):
                tell(job, marks)
    after, ended = gauge.energy_j(), time.time()
    missing = [job for job in jobs if job.name not in told]
    for job in missing:
        tell(job, marks_of(machine, mode, job.name))
    if missing:
        machine.cancel([job.name for job in missing])
    machine.ended([job.name for job in jobs], 30)
    energy = None if before is None or after is None else round(after - before, 1)
    names = [job.name for job in missing]
    rows.say(
        summary=True, mode=mode, span_s=round(ended - began, 2), energy_j=energy, idle=idle, missing=names
    )


def report(machine: Machine, rows: Rows) -> None:
    """What `gpumem report --summary` says of this run, to be held against what the rows say."""
    env = {**machine.env, "GPUMEM_SITE_CONFIG": f"{machine.state}/gpumem.toml"}
    code = "import sys; from slurm_gpumem.cli.gpumem import main; sys.exit(main())"
    for words in (["--json"], []):
        command = [str(machine.venv_python), "-I", "-c", code, "report", "--summary", "--all-time", *words]
        done = run(command, 30, env=env)
        try:
            said = json.loads(done.stdout) if words else {}
        except ValueError:
            said = {}
        rows.say(report=said.get("total") or (done.stdout + done.stderr)[-3000:].splitlines())
    jobs = [json.loads(path.read_text()) for path in sorted(machine.spool.glob("*.json"))]
    keys = ("job_id", "restarts", "slowed_s", "slowed_by", "sm_s", "energy_j", "start", "end", "verdict")
    rows.say(records=[{key: one[key] for key in keys if key in one} for one in jobs])


def fault(machine: Machine, rows: Rows, mode: str, steps: int) -> None:
    """Two users at one server, and an illegal access of one: what becomes of the other, what is recorded?"""
    played = machine.ledger is not None
    names = ("victim", "culprit")
    jobs = [Planned(name, "small", user, steps, 14, 1024, 12, 0.0) for user, name in enumerate(names)]
    for job in jobs:
        submit(machine, job, mode, played, fault_after=3.0 if job.name == "culprit" else 0.0)
    gone = machine.ended(names, 60)
    time.sleep(3)
    for name in names:
        marks, record = marks_of(machine, mode, name), machine.record(name)
        kept = {key: record.get(key) for key in ("mode", "hints", "events", "exit_code", "uid")}
        lived = marks.get("died", marks.get("done", 0)) - marks.get("ready", 0)
        rows.say(fault=name, gone=gone, error=marks.get("error"), trained_s=round(lived, 2), record=kept)
    suspects = {path.name: path.read_text() for path in machine.run_dir.glob("suspects/*")}
    again = Planned("again", "small", 0, 20, 14, 1024, 12, 0.0)
    submit(machine, again, mode, played, comment=",again=1,why=neighbour")
    machine.ended(["again"], 45)
    marks, record = marks_of(machine, mode, "again"), machine.record("again")
    kept = {key: record.get(key) for key in ("mode", "notes")}
    rows.say(fault="again", done="done" in marks, mps=marks.get("mps"), suspects=suspects, record=kept)


def again(machine: Machine, rows: Rows) -> None:
    """What became of the jobs that asked for too little: their runs, as root recorded them."""
    for name in (name for name in INJECTED if name in machine.jobs):
        found = sorted(machine.spool.glob(f"{machine.jobs[name]}.*.json"))
        runs = [json.loads(path.read_text()) for path in found]
        keys = (
            "restarts",
            "shards",
            "peak_mib",
            "limit_mib",
            "start",
            "end",
            "exit_code",
            "verdict",
            "hints",
        )
        rows.say(oom=name, runs=[{key: one.get(key) for key in keys} for one in runs])
    log = machine.state / "recovery.log"
    rows.say(recovery_log=log.read_text()[-1500:] if log.exists() else "")


def _relative(marks: Dict[str, Any], began: float) -> Dict[str, Any]:
    times = {key: round(marks[key] - began, 3) for key in ("began", "ready", "done", "died") if key in marks}
    ends = [round(end - began, 3) for end in marks["ends"]]
    kept = {key: marks[key] for key in ("error", "reserved_mib", "mps", "uid") if key in marks}
    failed = [[round(one - began, 3), round(end - began, 3), error] for one, end, error in marks["failed"]]
    return {**times, **kept, **({"failed": failed} if failed else {}), "ends": ends}


def copy_workers(machine: Machine) -> None:
    """To where its users can run them."""
    here = Path(__file__).resolve()
    life = here.parents[2] / "tests" / "gpu" / "life_worker.py"
    for worker in (here.with_name("mode_workers.py"), here.with_name("rehearsal_worker.py"), life):
        shutil.copy(worker, machine.work)


def main() -> int:
    """One mode, or the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mode", required=True, choices=("solo", *MODES, "exclusive", "report"))
    parser.add_argument("--max-slowdown", type=float, default=SHARING.default("max_slowdown"))
    parser.add_argument("--jobs", type=int, help="jobs of the trace that run (default: all; 12 long ones)")
    parser.add_argument("--train", type=float, help=f"seconds it trains alone ({SOLO_S:g}; long: {LONG_S:g})")
    parser.add_argument("--page", type=Path, help="where the report goes (default: DIR/rehearsal.md)")
    parser.add_argument("--beside", type=Path, help="rows whose interference the report may use, too")
    parser.add_argument("--state", type=Path, default=Path(tempfile.gettempdir()) / "grehearsal")
    parser.add_argument("--up", default=".carry/slurm-on-gpu/up .carry/debs {slurm}")
    parser.add_argument("--down", default=".carry/slurm-on-gpu/down {slurm}")
    parser.add_argument("--mps-control", default="/usr/bin/nvidia-cuda-mps-control")
    parser.add_argument("--limit", type=float, default=170.0, help="seconds for the trace of one mode")
    parser.add_argument("--open", action="store_true", help="users can load torch: not tried again")
    parser.add_argument("--rehearse", action="store_true", help="on a dev cluster, with sleeping jobs")
    args = parser.parse_args()
    long = args.mode.endswith("-long")
    args.jobs = args.jobs or (12 if long else len(TRACE))
    args.train = args.train or (LONG_S if long else SOLO_S)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.mode == "report":
        if any((args.out / f"{mode}.jsonl").exists() for mode in LIMITED):
            page = args.page or args.out / "rehearsal-limit.md"
            write_limit_report(args.out, page, args.beside or args.out)
        else:
            write_report(args.out, args.page or args.out / "rehearsal.md")
        return 0
    target = args.out / f"{args.mode}.jsonl"
    if any(row.get("summary") for row in read_rows(target)):
        print(f"{target} is complete: not run again")
        return 0
    if os.geteuid() != 0:
        parser.error("run it as root: Slurm's daemons and two users' jobs need that")
    solo_file = args.out / "solo.jsonl"
    measured = any(row.get("summary") for row in read_rows(solo_file))
    if not measured and not args.rehearse:
        import torch  # noqa: F401 - once, before the forks
    slurm, ledger = args.state / "slurm", None
    if args.rehearse:
        here = Path(__file__).resolve().parents[2] / "tests" / "gpu"
        shutil.rmtree(args.state, ignore_errors=True)
        ledger = slurm / "ledger"
        args.up = f"{sys.executable} {here}/rehearsal_cluster.py up {{slurm}}"
        args.down = f"{sys.executable} {here}/rehearsal_cluster.py down {{slurm}}"
        (args.state / "bin").mkdir(parents=True)
        args.mps_control = shutil.copy(
            here.parent / "node" / "bin" / "nvidia-cuda-mps-control", args.state / "bin"
        )
    words = lambda text: [word.format(slurm=slurm) for word in shlex.split(text)]  # noqa: E731
    machine = Machine(args.state, args.out.resolve(), words(args.up), ledger, args.mps_control)
    if not measured:
        solo(Rows(solo_file), _no_gauge() if args.rehearse else Gauge(None, machine.node), args.rehearse)
    if args.mode == "solo":
        return 0
    alone = read_rows(solo_file)
    jobs = planned(alone, args.jobs, args.train)
    way = LIMITED.get(args.mode, args.mode)
    if args.mode in LIMITED:
        jobs = under_limit(jobs, alone, args.max_slowdown, way)
    machine.prepare()
    copy_workers(machine)
    opened = {} if args.open else machine.open_to_users()
    try:
        mps = "timeslice" if args.mode == "exclusive" else way
        hooks = machine.state / "hooks"
        with open(hooks / "hooks.conf", "a", encoding="utf-8") as file:
            file.write(f"recovery_log={machine.state}/recovery.log\n")
        recovery = f"EpilogSlurmctld={hooks}/epilog_slurmctld.sh\n" if args.mode in LIMITED else ""
        machine.start({"mps": mps, "activity_every_s": 1, "idle_exit_s": 6}, _SCHEDULER + recovery)
        rows = Rows(target)
        limit = {"max_slowdown": args.max_slowdown} if args.mode in LIMITED else {}
        rows.say(opened=opened, train_s=args.train, **limit)
        gauge = Gauge(ledger, machine.node)
        chosen = [job for job in jobs if job.name in SUBSET] if args.mode == "exclusive" else jobs
        trace(machine, rows, gauge, args.mode, chosen, args.limit)
        if args.mode == "shared":
            fault(machine, rows, args.mode, round(15 * _steps_per_s(args.out, "small")))
        if args.mode in LIMITED:
            again(machine, rows)
        report(machine, rows)
        log = machine.run_dir / "log"
        rows.say(hooks_log=log.read_text()[-1500:] if log.exists() else "")
    finally:
        machine.stop(words(args.down))
    return 0


def _no_gauge() -> Any:
    class Nothing:
        def watch(self, seconds: float) -> Dict[str, Optional[float]]:
            time.sleep(seconds)
            return {"power_w": 100.0, "sm": 0.5}

    return Nothing()


if __name__ == "__main__":
    sys.exit(main())
