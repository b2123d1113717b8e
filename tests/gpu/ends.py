"""Ends beside others, tried for life: jobs that share a GPU through real Slurm and MPS are ended, many times.

As root, on a machine with an NVIDIA GPU, torch, nvcc and MPS, from the repository's root:

    python3 tests/gpu/ends.py --out "$OUT" [--part ends|leave|limits|preempted|victims] [--seconds 500]

Slurm comes from `.carry/slurm-on-gpu/up .carry/debs STATE`. A job that goes on is the witness; others start
beside it, end one after another, and after each end every job that was not ended must still run. One line of
JSON for each end goes to ends.jsonl; `python3 tests/gpu/ends.py --table FILE` prints the table of
docs/admin/node.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from life_machine import LifeError, Machine, run, until

HERE = Path(__file__).resolve().parent
KILL_WAIT_S = 30
SETTINGS = {"slurm_every_s": 5, "record_every_s": 2, "idle_exit_s": 60}
PY = sys.executable
CONTAINER = "unshare --user --map-current-user --mount"
"""As Apptainer does it; with process ids of their own MPS does not serve them (docs/admin/containers.md)."""
PREEMPT = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
URGENT = "PartitionName=urgent Nodes=ALL PriorityTier=10 MaxTime=INFINITE State=UP\n"


class Kind(NamedTuple):
    """A job that is ended."""

    name: str
    command: str
    way: str = "scancel"
    options: Sequence[str] = ()
    plain: bool = False
    """Submitted without a record of ours."""


def _launched(launcher: str) -> str:
    return f"{PY} -m {launcher} {{work}}/ends_worker.py loader"


KINDS = (
    Kind("CUDA program", "{work}/ends_client train; true"),
    Kind("PyTorch script", f"{PY} {{work}}/ends_worker.py plain; true"),
    Kind("CUDA program", "exec {work}/ends_client train"),
    Kind("python -I", f"exec {PY} -I {{work}}/ends_worker.py plain"),
    Kind("CUDA program that ignores SIGTERM", "{work}/ends_client ignore; true"),
    Kind("script whose handler saves for 4 s", f"{PY} {{work}}/ends_worker.py checkpoint; true"),
    Kind("torchrun, workers", _launched("torch.distributed.run --standalone --nproc_per_node=1")),
    Kind("CUDA program that ignores SIGTERM", "exec {work}/ends_client ignore"),
    Kind("Lightning, workers", f"{PY} {{work}}/ends_worker.py lightning; true"),
    Kind("CUDA program", "{work}/ends_client train; true", "scancel --signal=TERM --full"),
    Kind("PyTorch script", f"{PY} {{work}}/ends_worker.py plain; true", "scancel --signal=USR1 --full"),
    Kind("CUDA program", "{work}/ends_client train; true", "requeue"),
    Kind("CUDA program", "{work}/ends_client train; true", "suspended, then scancel"),
    Kind("CUDA program", "srun --overlap --gres=none {work}/ends_client train"),
    Kind("PyTorch script", f"exec {PY} {{work}}/ends_worker.py plain"),
    Kind("accelerate, workers", _launched("accelerate.commands.launch --num_processes=1")),
    Kind("CUDA program in namespaces", f"{CONTAINER} {{work}}/ends_client train; true"),
    Kind("PyTorch script in namespaces", f"{CONTAINER} {PY} {{work}}/ends_worker.py plain; true"),
    Kind("PyTorch script", f"{PY} {{work}}/ends_worker.py plain; true"),
)  # fmt: skip
PREEMPTED = (KINDS[0], KINDS[1], KINDS[4], KINDS[3], KINDS[6])
NOTHING_SAVES = (
    Kind("CUDA program", "exec {work}/ends_client train", "SIGKILL"),
    Kind("PyTorch script", f"exec {PY} {{work}}/ends_worker.py plain", "SIGKILL"),
    Kind("CUDA program", "{work}/ends_client fault", "illegal memory access"),
)
BY_THEMSELVES = (
    Kind("CUDA program ends with work queued", "{work}/ends_client leave", "by itself"),
    Kind("PyTorch script ends with work queued", f"{PY} {{work}}/ends_worker.py end", "by itself"),
    Kind("PyTorch script raises with work queued", f"{PY} {{work}}/ends_worker.py raise", "by itself"),
)
TIME_LIMIT = Kind("CUDA program", "{work}/ends_client train; true", "time limit", ("--time=1",))
PARTS = ("ends", "leave", "limits", "preempted", "victims")
LIMITS = (
    "abc",
    "0=0",
    "1=1G",
    "7=1G",
    "0=2048M,1=1G",
    "GPU-00000000-0000-0000-0000-000000000000=1G",
    "0=20000M",
)


class Trial:
    """Jobs on one GPU."""

    def __init__(self, machine: Machine, out: Path, deadline: float) -> None:
        self.machine, self.deadline = machine, deadline
        self.rows = out / "ends.jsonl"
        self.count = 0
        self.mode = ""
        self.names: Dict[int, str] = {}
        self.kept: Optional[int] = None
        """A job that is left to its time limit."""
        self.dead = 0

    def note(self, **row: Any) -> None:
        self.dead += row.get("died", 0)
        with open(self.rows, "a") as file:
            file.write(json.dumps({"mode": self.mode, **row}) + "\n")
        print(json.dumps(row), flush=True)

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def submit(self, kind: Kind, user: int, shards: int = 5, prelude: str = "") -> int:
        m = self.machine
        self.count += 1
        name = f"e{self.count}"
        _, uid, gid = m.users[user]
        script = m.work / f"{name}.sh"
        script.write_text(
            f"#!/bin/bash\nunset LD_LIBRARY_PATH\nexport HOME={m.work} PYTHONDONTWRITEBYTECODE=1\n{prelude}\n"
            f"{kind.command.format(work=m.work)}\n"
        )
        comment = f"--comment=gpumem/1:est=3000,req={shards * 1024},shards={shards},oom=requeue"
        argv = [
            "sbatch", "--parsable", f"--uid={uid}", f"--gid={gid}", f"--output={m.work}/{name}.out",
            f"--gres=shard:{shards}", f"--chdir={m.work}",
            *([] if kind.plain else [comment]), "--requeue", "--open-mode=append", *kind.options, str(script),
        ]  # fmt: skip
        done = run(argv, 15, env=m.env)
        if done.returncode:
            raise LifeError(done.stderr[-300:])
        job = int(done.stdout)
        self.names[job] = name
        return job

    def out(self, job: int) -> str:
        try:
            return (self.machine.work / f"{self.names[job]}.out").read_text(errors="replace")
        except OSError:
            return ""

    def states(self) -> Dict[int, str]:
        done = run(["squeue", "-h", "-o", "%i %T"], 5, env=self.machine.env)
        return {int(a): b for a, b in (line.split() for line in done.stdout.splitlines())}

    def runs(self, job: int) -> bool:
        return self.states().get(job) in ("RUNNING", "SUSPENDED") and "ERROR" not in self.out(job)

    def ready(self, jobs: Sequence[int], timeout_s: float) -> List[int]:
        """Those that train; the sampler must have seen them, too."""
        clients = self.machine.run_dir / "jobs"

        def trains(job: int) -> bool:
            return "ready" in self.out(job) and (clients / f"{job}.clients").exists()

        until(lambda: all(map(trains, jobs)), min(timeout_s, max(1.0, self.left())))
        return [job for job in jobs if trains(job)]

    def do(self, *words: str) -> str:
        done = run(words, 15, env=self.machine.env)
        return (done.stdout + done.stderr).strip()[-200:]

    def end(self, kind: Kind, job: int) -> None:
        """As its way says; returns when the job is gone from its node."""
        number = str(job)
        if kind.way == "requeue":
            self.do("scontrol", "requeue", number)
        elif kind.way.startswith("suspended"):
            self.do("scontrol", "suspend", number)
            time.sleep(1.0)
            self.do("scancel", number)
        elif kind.way.startswith("scancel"):
            self.do("scancel", *kind.way.split()[1:], number)
        gone = lambda: self.states().get(job) in (None, "PENDING", "COMPLETED", "FAILED")  # noqa: E731
        until(gone, 90 if kind.way == "time limit" else KILL_WAIT_S + 15)

    def witness(self, *options: str) -> int:
        job = self.submit(Kind("witness", "{work}/ends_client watch", options=options), 0)
        if not self.ready([job], 30):
            raise LifeError(f"the witness does not train: {self.out(job)[-300:]} {self.states()}")
        return job

    def wave(self, kinds: Sequence[Kind], user: int, ready_s: float = 40) -> None:
        """All start; one after another ends; whoever was not ended must go on."""
        witness = self.witness()
        jobs = {self.submit(kind, user): kind for kind in kinds}
        trains = self.ready(list(jobs), ready_s)
        for job in set(jobs) - set(trains):
            self.note(kind=jobs[job].name, way=jobs[job].way, failed_to_start=self.out(job)[-400:])
            self.do("scancel", str(job))
        for job in trains:
            if self.left() < 12:
                break
            kind = jobs[job]
            others = [other for other in (*trains[trains.index(job) + 1 :], witness) if self.runs(other)]
            if not self.runs(job):
                self.note(kind=kind.name, way=kind.way, lost_before=self.out(job)[-200:])
                continue
            began = time.monotonic()
            self.end(kind, job)
            took = round(time.monotonic() - began, 1)
            time.sleep(1.0)
            died = [other for other in others if not self.runs(other)]
            self.note(
                kind=kind.name, way=kind.way, beside=len(others), died=len(died), took_s=took,
                saved="saved" in self.out(job), how=[jobs[o].name if o in jobs else "witness" for o in died],
                said=[self.out(o)[-160:] for o in died[:2]], own=self.out(job)[-160:],
            )  # fmt: skip
            if witness in died:
                witness = self.witness()
        self.do("scancel", "--state=PENDING", *map(str, jobs))
        self.stop_all()

    def all_at_once(self, user: int) -> None:
        """Eight jobs are cancelled by one command, beside the witness."""
        witness = self.witness()
        jobs = self.ready([self.submit(KINDS[number % 2 * 2], user) for number in range(8)], 15)
        began = time.monotonic()
        self.do("scancel", *map(str, jobs))
        until(lambda: not set(jobs) & set(self.states()), KILL_WAIT_S + 15)
        time.sleep(1.0)
        died, took = not self.runs(witness), round(time.monotonic() - began, 1)
        for job in jobs:
            self.note(
                kind="CUDA program, eight at once", way="scancel", beside=1, took_s=took,
                died=int(died and job == jobs[0]), own=self.out(job)[-100:],
            )  # fmt: skip
        self.stop_all()

    def by_themselves(self, kinds: Sequence[Kind], user: int) -> None:
        """Each ends when its script does."""
        for kind in kinds:
            witness = self.witness()
            for _ in range(3 if kind.command.startswith("{work}") else 2):
                if self.left() < 20:
                    return
                job = self.submit(kind, user)
                began = time.monotonic()
                until(lambda: job not in self.states(), 40)  # noqa: B023 - called at once
                time.sleep(1.0)
                died = not self.runs(witness)
                self.note(
                    kind=kind.name, way=kind.way, beside=1, died=int(died), own=self.out(job)[-160:],
                    took_s=round(time.monotonic() - began, 1),
                )  # fmt: skip
                if died:
                    witness = self.witness()
        self.stop_all()

    def limits(self, values: Sequence[str], user: int) -> None:
        """Jobs of 4 shards that take 6 GiB, with a limit variable that MPS does not hold them to."""
        inside = [(value, True) for value in values[:3]]
        tries = [(value, False) for value in values]
        for together in ([tries[0]], [inside[0]], [tries[3], inside[1]], [*tries, *inside]):
            self.over(together, user)

    def over(self, together: Sequence[Tuple[str, bool]], user: int) -> None:
        """These at once, beside the witness."""
        witness, jobs = self.witness(), {}
        for value, inside in together:
            prelude = "" if inside else f"export CUDA_MPS_PINNED_DEVICE_MEM_LIMIT='{value}'"
            command = f"{PY} {{work}}/ends_worker.py grow '{value}' {'--inside' if inside else ''}"
            job = self.submit(Kind("grow", command, options=("--no-requeue",)), user, 4, prelude)
            jobs[job] = (value, inside)
        until(lambda: not set(jobs) & set(self.states()), 60)
        time.sleep(1.0)
        for job, (value, inside) in jobs.items():
            record, text = self.record(job, 0), self.out(job)
            over = [float(line.split()[1]) for line in text.splitlines() if line.startswith("over ")]
            failed = [float(line.split()[1]) for line in text.splitlines() if line.startswith("refused ")]
            self.note(
                limit=value, inside=inside, together=len(together), over=bool(over),
                died=int(not self.runs(witness)),
                seconds=round(failed[0] - over[0], 1) if over and failed else None,
                gone_s=round(record["end"] - over[0], 1) if over and record.get("end") else None,
                verdict=record.get("verdict"), notes=record.get("notes"), peak=record.get("peak_mib"),
                text=text[-300:],
            )  # fmt: skip
        self.stop_all()

    def preempted(self, user: int) -> None:
        """An urgent job needs the room of all but the witness, which cannot be preempted."""
        witness = self.witness("--partition=urgent")
        jobs = {self.submit(kind, user): kind for kind in PREEMPTED}
        trains = self.ready(list(jobs), 30)
        shards = int(self.do("sinfo", "-h", "-p", "urgent", "-o", "%G").partition("shard:")[2].split("(")[0])
        began = time.monotonic()
        urgent = self.submit(Kind("urgent", "true", options=("--partition=urgent",)), user, shards - 8)
        until(lambda: urgent not in self.states(), KILL_WAIT_S + 20)
        time.sleep(1.0)
        died, took = not self.runs(witness), round(time.monotonic() - began, 1)
        for job in trains:
            self.note(
                kind=jobs[job].name, way="preempted, all at once", beside=1, took_s=took,
                died=int(died and job == trains[0]), own=self.out(job)[-100:],
            )  # fmt: skip
        self.do("scancel", "--state=PENDING", *map(str, jobs))
        self.stop_all()

    def victims(self, user: int, kind: Kind) -> None:
        """What nothing can save. The neighbours must come back by themselves, once."""
        others = {self.witness(): "witness", self.submit(KINDS[2], 0): "trains"}
        if len(self.ready(list(others), 30)) < len(others):
            return self.note(kind=kind.name, failed_to_start=[self.out(job)[-300:] for job in others])
        job = self.submit(kind, user)
        if not self.ready([job], 30):
            return self.note(kind=kind.name, failed_to_start=self.out(job)[-300:])
        time.sleep(1.0)
        if kind.way == "SIGKILL":
            self.kill(job)
        until(lambda: all("ERROR" in self.out(other) for other in others), 8)
        fell = [other for other in others if "ERROR" in self.out(other)]
        until(lambda: all("ready" in self.out(o).partition("ERROR")[2] for o in fell), 50)
        for other, name in others.items():
            text, record = self.out(other), self.record(other, 0) if other in fell else {}
            self.note(
                nothing_saves=kind.name, way=kind.way, neighbour=name, fell=other in fell,
                came_back="ready" in text.partition("ERROR")[2], verdict=record.get("verdict"),
                hints=record.get("hints"), events=record.get("events"), text=text[-300:],
            )  # fmt: skip
        self.stop_all()

    def kill(self, job: int) -> None:
        """Its GPU processes, as the kernel does when memory runs out; scancel would send SIGTERM first."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes()
                mine = f"SLURM_JOB_ID={job}".encode() in (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mine and b"ends_" in words:
                os.kill(int(folder.name), signal.SIGKILL)

    def record(self, job: int, restarts: int) -> Dict[str, Any]:
        path = self.machine.spool / f"{job}.{restarts}.{self.machine.node}.json"
        until(lambda: path.exists() and json.loads(path.read_text()).get("end"), 8)
        try:
            found: Dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError):
            return {}
        return found

    def stop_all(self) -> None:
        for job in self.states():
            if job != self.kept:
                self.do("scancel", str(job))
        until(lambda: not self.states().keys() - {self.kept}, KILL_WAIT_S + 10)

    def time_limit(self) -> None:
        """The job that was left to it: it has ended, and nobody with it."""
        job = self.kept or 0
        state = self.record(job, 0).get("state")
        kind = TIME_LIMIT
        self.note(kind=kind.name, way=kind.way, took_s=60, died=0, all_died=self.dead, state=state)
        self.kept = None


def build(machine: Machine) -> None:
    """What jobs need: the CUDA program, the library of the hooks, folders that users may enter."""
    machine.prepare()
    hooks = machine.state / "hooks"
    for argv in (
        ["nvcc", "-O2", "-o", str(machine.work / "ends_client"), str(HERE / "ends_client.cu")],
        [f"{hooks}/build_end.sh"],
    ):
        done = run(argv, 120)
        if done.returncode:
            raise LifeError(f"{argv[0]}: {done.stderr[-300:]}")
    shutil.copy(HERE / "ends_worker.py", machine.work)
    print(machine.open_to_users(), flush=True)


def table(path: Path) -> str:
    """The rows, counted: for docs/admin/node.md."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    ends = [row for row in rows if "took_s" in row]
    lines = ["| what | ended by | ends: shared, per-user | neighbours that died |", "|---|---|---|---|"]
    for (kind, way), _ in Counter((row["kind"], row["way"]) for row in ends).items():
        mine = [row for row in ends if (row["kind"], row["way"]) == (kind, way)]
        counts = [sum(row["mode"] == mode for row in mine) for mode in ("shared", "per-user")]
        lines.append(f"| {kind} | {way} | {counts[0]}, {counts[1]} | {sum(row['died'] for row in mine)} |")
    lines.append(f"{len(ends)} ends, {sum(row['died'] for row in ends)} neighbours died")
    return "\n".join(lines)


def options(doc: Optional[str], state: str, seconds: float) -> argparse.ArgumentParser:
    """What both trials of ends take."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--mode", action="append", choices=("shared", "per-user"))
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--state", type=Path, default=Path(tempfile.gettempdir()) / state)
    parser.add_argument("--mps-control", default=shutil.which("nvidia-cuda-mps-control") or "")
    return parser


@contextmanager
def machine_for(args: argparse.Namespace) -> Iterator[Machine]:
    """The machine; afterwards its logs are packed and its Slurm is stopped."""
    if os.geteuid() != 0:
        raise SystemExit("run it as root: Slurm's daemons and users' jobs need that")
    shutil.rmtree(args.state, ignore_errors=True)
    slurm = args.state / "slurm"
    up = [".carry/slurm-on-gpu/up", ".carry/debs", str(slurm)]
    machine = Machine(args.state, args.out, up, None, args.mps_control)
    try:
        yield machine
    except LifeError as error:
        print(f"stopped: {error}", flush=True)
    finally:
        print(run(["tail", "-n", "60", str(machine.run_dir / "log")], 5).stdout, flush=True)
        machine.collect()
        subprocess.run(["tar", "czf", str(args.out / "logs.tgz"), "-C", str(args.out), "logs"], check=False)
        shutil.rmtree(args.out / "logs", ignore_errors=True)
        machine.stop([".carry/slurm-on-gpu/down", str(slurm)])


def set_mode(machine: Machine, settings: Dict[str, Any], mode: str) -> None:
    """Another way of sharing, which the next sampler reads."""
    machine.configure({**settings, "mps": mode})
    pid = machine.sampler_pid()
    if pid:
        os.kill(pid, 15)
        until(lambda: machine.sampler_pid() is None, 10)


def main() -> int:
    """Run the parts that were asked for."""
    parser = options(__doc__, "gends", 500)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--first", type=int, default=0, metavar="N", help="leave out the first N kinds")
    args = parser.parse_args()
    if args.table:
        print(table(args.table))
        return 0
    began, modes, parts = time.monotonic(), args.mode or ["shared", "per-user"], args.part or ["ends"]
    with machine_for(args) as machine:
        build(machine)
        hooks = args.state / "hooks"
        with open(hooks / "hooks.conf", "a") as file:
            file.write(f"recovery_log={args.state}/recovery.log\n")
        machine.start(
            {**SETTINGS, "mps": modes[0]},
            f"KillWait={KILL_WAIT_S}\nEpilogSlurmctld={hooks}/epilog_slurmctld.sh\n{PREEMPT}{URGENT}",
        )
        for number, mode in enumerate(modes):
            end = began + args.seconds * (number + 1) / len(modes)
            trial = Trial(machine, args.out, end)
            trial.mode, user = mode, 1 if mode == "shared" else 0
            trial.count = 1000 * number
            set_mode(machine, SETTINGS, mode)
            if "limits" in parts:
                trial.limits(LIMITS, user)
            if "victims" in parts:
                for kind in NOTHING_SAVES:
                    trial.victims(user, kind)
            if "leave" in parts:
                trial.by_themselves(BY_THEMSELVES, user)
            if "preempted" in parts:
                trial.preempted(user)
            if "ends" in parts:
                trial.kept = trial.submit(TIME_LIMIT, user)
                for first in range(args.first, len(KINDS), 5):
                    trial.wave(KINDS[first : first + 5], user, 30)
                while trial.left() > 25:
                    trial.all_at_once(user)
                    if trial.left() > 20:
                        trial.wave([KINDS[0], KINDS[4], KINDS[2], KINDS[0], KINDS[4], KINDS[2]], user, 15)
                trial.time_limit()
                trial.stop_all()
    if (args.out / "ends.jsonl").exists():
        print(table(args.out / "ends.jsonl"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
