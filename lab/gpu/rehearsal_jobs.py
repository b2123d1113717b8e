"""Jobs that train on one real GPU through Slurm: how fast alone, how they are submitted, what they mark.

Each job is a `rehearsal_worker.py`; the machine, Slurm and the hooks are those of tests/gpu/life_machine.py.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "gpu"))

from life_machine import LifeError, Machine, run
from mode_workers import KINDS, Worker, rate

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.node.gpus import find_gpus, standin_gpus
from slurm_gpumem.node.sources.base import SourceError
from slurm_gpumem.node.sources.choose import choose_source

CONTEXT_GIB = 2


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


def solo(rows: Rows, gauge: Gauge, played: bool, window: float = 1.6) -> None:
    """Every kind alone on the GPU: step time, power, activity."""
    rows.say(idle=gauge.watch(1.5))
    workers = [Worker(kind, 65534, {"HOME": "/tmp"}, played, build_s=40.0) for kind in KINDS]
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


def submit(machine: Machine, job: Planned, mode: str, played: bool, *, comment: str = "") -> int:
    """A batch job of the trace; its marks go to work/MODE-NAME.marks."""
    _, uid, gid = machine.users[job.user]
    stem = machine.work / f"{mode}-{job.name}"
    words = f"--steps={job.steps} --ballast={job.ballast_mib} --out={stem}.marks" + " --played" * played
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


def relative(marks: Dict[str, Any], began: float) -> Dict[str, Any]:
    """The marks as seconds since a moment."""
    times = {key: round(marks[key] - began, 3) for key in ("began", "ready", "done", "died") if key in marks}
    ends = [round(end - began, 3) for end in marks["ends"]]
    kept = {key: marks[key] for key in ("error", "reserved_mib", "mps", "uid") if key in marks}
    failed = [[round(one - began, 3), round(end - began, 3), error] for one, end, error in marks["failed"]]
    return {**times, **kept, **({"failed": failed} if failed else {}), "ends": ends}


def copy_workers(machine: Machine) -> None:
    """To where its users can run them."""
    for worker in ("mode_workers.py", "rehearsal_worker.py"):
        shutil.copy(Path(__file__).resolve().with_name(worker), machine.work)


def no_gauge() -> Any:
    """For a machine without a GPU."""

    class Nothing:
        def watch(self, seconds: float) -> Dict[str, Optional[float]]:
            time.sleep(seconds)
            return {"power_w": 100.0, "sm": 0.5}

    return Nothing()
