"""What people wait for every day: submitting, reports, a trace that is there already.

Run it with `make bench-everyday`; exits 1 if a figure is over its limit. Figures are CPU time of the command
and its children, the least of some rounds, which other work on the machine raises less than the wall time
that is printed beside it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence

from slurm_gpumem.devcluster.cluster import up
from slurm_gpumem.devcluster.spec import ClusterSpec
from tests.bench.make_records import records

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
ROUNDS = 9
MEM_RATIO, MODEL_MORE_MS, REPORT_MS, CACHED_MS = 5.0, 60.0, 100.0, 300.0


class Took(NamedTuple):
    """CPU and wall seconds."""

    cpu: float
    wall: float

    def __str__(self) -> str:
        return f"{self.cpu * 1000:.0f} ms of CPU, {self.wall * 1000:.0f} ms in all"


def main() -> int:
    """Take all figures and print them."""
    with tempfile.TemporaryDirectory(prefix="gpumem-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SLURM", "GPUMEM", "PYTHONDONT"))
        }
        env.update(XDG_CACHE_HOME=str(folder / "cache"), HOME=str(folder))
        within = [*_submitting(folder, env), *_reading(folder, env), *_estimating(folder, env)]
    return 0 if all(within) else 1


def _submitting(folder: Path, env: Dict[str, str]) -> List[bool]:
    cluster = up(ClusterSpec(state=folder / "cluster"))
    try:
        env = {**env, **cluster.env}
        (folder / "mem.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:1\n#GPUMEM mem=12G\ntrue\n")
        (folder / "model.sh").write_text(
            f"#!/bin/bash\n#SBATCH --gres=gpu:1\n#GPUMEM model={EXAMPLES}/resnet50.txt batch-size=128\ntrue\n"
        )
        gpusbatch = str(Path(sys.executable).with_name("gpusbatch"))
        bare = _least([sys.executable, "-c", "pass"], folder, env)
        mem = _least([gpusbatch, "--dry-run", "mem.sh"], folder, env)
        first = min(_first(folder, [gpusbatch, "--dry-run", "model.sh"], env) for _ in range(ROUNDS))
        model = _least([gpusbatch, "--dry-run", "model.sh"], folder, env)
    finally:
        cluster.stop()
    more = (model.cpu - mem.cpu) * 1000
    return [
        _report(
            "gpusbatch --dry-run, mem=, to bare Python", mem.cpu / bare.cpu, MEM_RATIO, "x", f"{mem}; {bare}"
        ),
        _report(
            "the same with a text model, more by",
            more,
            MODEL_MORE_MS,
            "ms",
            f"{model}; the first time {first}",
        ),
    ]


def _first(folder: Path, argv: Sequence[str], env: Dict[str, str]) -> Took:
    """Without the kept estimate."""
    shutil.rmtree(folder / "cache" / "gpumem" / "estimates", ignore_errors=True)
    return _took(argv, folder, env)


def _reading(folder: Path, env: Dict[str, str]) -> List[bool]:
    spool = folder / "spool"
    spool.mkdir()
    for record in records(500, until=time.time()):
        record["uid"] = os.geteuid()
        name = f"{record['job_id']}.{record['restarts']}.{record['node']}.json"
        (spool / name).write_text(json.dumps(record))
    (folder / "gpumem.toml").write_text(f'[node]\nspool = "{spool}"\n')
    more = {"GPUMEM_SITE_CONFIG": str(folder / "gpumem.toml"), "GPUMEM_INDEX": str(folder / "index")}
    report = _least([_gpumem(), "report"], folder, {**env, **more, "PATH": "/usr/bin:/bin"})
    return [_report("gpumem report, 500 jobs", report.cpu * 1000, REPORT_MS, "ms", str(report))]


def _estimating(folder: Path, env: Dict[str, str]) -> List[bool]:
    if importlib.util.find_spec("torch") is None:
        print("a trace that is there already: not measured, there is no torch here")
        return []
    target = f"{EXAMPLES / 'small_cnn.py'}:SmallCnn"
    traced = [_gpumem(), "estimate", target, "--input", "3,32,32", "--batch-size", "64", "--gpu", "a100"]
    first = _took(traced, folder, env)
    again = _least(traced, folder, env, rounds=5)
    note = f"{again}; the first time {first}"
    return [_report("an estimate of code traced before", again.cpu * 1000, CACHED_MS, "ms", note)]


def _gpumem() -> str:
    return str(Path(sys.executable).with_name("gpumem"))


def _least(argv: Sequence[str], folder: Path, env: Dict[str, str], rounds: int = ROUNDS) -> Took:
    # The first call fills caches: of the cluster, of records, of compiled files.
    _took(argv, folder, env)
    return min(_took(argv, folder, env) for _ in range(rounds))


def _took(argv: Sequence[str], folder: Path, env: Dict[str, str]) -> Took:
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, f"{argv}: {done.stderr}"
    return Took(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def _report(what: str, value: float, limit: float, unit: str, note: str) -> bool:
    print(
        f"{'ok  ' if value <= limit else 'OVER'} {what}: {value:.3g} {unit} (limit {limit:g}; {note})",
        flush=True,
    )
    return value <= limit


if __name__ == "__main__":
    sys.exit(main())
