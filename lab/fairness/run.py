"""Run the two users' jobs on a dev cluster of real Slurm daemons: `python -m lab.fairness.run --out rows.jsonl`.

An hour of the trace takes three seconds. Each job is a real batch job that counts its steps in files
(`lab/fairness/trainer.py`); a way takes about three minutes. A row is one job: when it was submitted, its
runs, and the steps that were done.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

from lab.command import exit_code
from lab.fairness import trainer
from lab.fairness.workload import LONG, SCALE, SECONDS_PER_HOUR, STEP_S, WAYS, Way, steps_of, trace
from slurm_gpumem.devcluster.cluster import Cluster, up
from slurm_gpumem.devcluster.spec import ClusterSpec, NodeSpec
from slurm_gpumem.errors import DevClusterError
from slurm_gpumem.simulation.types import SimJob
from slurm_gpumem.terminal.say import say

GPUS = 8
CRED_EXPIRE_S = 5
"""Slurm's 120 s would be 40 hours of the trace."""
_PATIENCE_S = 900.0


def run(way: Way, jobs: Sequence[SimJob]) -> List[Dict[str, Any]]:
    """The rows of one way, once every job has ended."""
    folder = Path(tempfile.mkdtemp(prefix="gpumem-fair-"))
    folder.chmod(0o755)
    jobs_folder = folder / "jobs"
    jobs_folder.mkdir()
    cluster = up(spec(way, folder / "cluster"))
    try:
        submitted = dict(_submit(cluster, way, jobs, jobs_folder))
        _wait_for_all(cluster, jobs, jobs_folder)
        return [_row(way, job, submitted[job.name], jobs_folder) for job in jobs]
    finally:
        cluster.stop()
        shutil.rmtree(folder)


def spec(way: Way, state: Path) -> ClusterSpec:
    """Two nodes with as many places for jobs in every way."""
    nodes = tuple(NodeSpec(name, gpus=GPUS // (4 if way.shares else 2)) for name in ("n1", "n2"))
    low = f"PartitionName=low Nodes=ALL PriorityTier=1 GraceTime={way.grace_s} DefMemPerCPU=100 State=UP"
    return ClusterSpec(nodes, state=state, cred_expire_s=CRED_EXPIRE_S, extra_conf=(*way.conf, low))


def _submit(cluster: Cluster, way: Way, jobs: Sequence[SimJob], folder: Path) -> Iterator[tuple[str, float]]:
    """Each job at its time; yields its name and when that was."""
    start = time.time()
    for job in sorted(jobs, key=lambda job: job.arrival):
        time.sleep(max(0.0, start + job.arrival * SCALE - time.time()))
        options = ["--signal=B:USR1@10"] if way.grace_s else []
        partition = "urgent" if way.urgent and job.user != LONG else "low"
        gres = "shard:20" if way.shares else "gpu:1"
        command = [
            sys.executable, trainer.__file__, str(folder), job.name, str(steps_of(job)), f"--step-s={STEP_S}",
            *(["--checkpoint"] if way.checkpoint else []), f"--slot-s={way.turns.slot_s * SCALE}",
        ]  # fmt: skip
        yield job.name, time.time()
        argv = [
            "sbatch",
            "--requeue",
            "--output=/dev/null",
            f"--partition={partition}",
            f"--gres={gres}",
            *options,
        ]
        argv += ["--cpus-per-task=1", "--mem=100M", "--time=60", f"--wrap=exec {' '.join(command)}"]
        cluster.run(argv, cwd=Path("/"), check=True)


def _wait_for_all(cluster: Cluster, jobs: Sequence[SimJob], folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not all(_done(job, folder) for job in jobs):
        if time.monotonic() > deadline:
            queue = cluster.run(["squeue"]).stdout
            raise DevClusterError(f"jobs still wait after {_PATIENCE_S:g} s\n{queue}")
        time.sleep(1.0)


def _done(job: SimJob, folder: Path) -> bool:
    return any(kind == "end" and step >= steps_of(job) for kind, _, _, step in _events(job, folder))


def _events(job: SimJob, folder: Path) -> List[tuple[str, int, float, int]]:
    file = folder / f"{job.name}.runs"
    lines = file.read_text().splitlines() if file.exists() else []
    return [
        (kind, int(number), float(moment), int(step))
        for kind, number, moment, step in (line.split() for line in lines)
    ]


def _row(way: Way, job: SimJob, submitted: float, folder: Path) -> Dict[str, Any]:
    """Runs in seconds after the submission; one that was killed ends with its last step."""
    steps = [line.split() for line in (folder / f"{job.name}.steps").read_text().splitlines()]
    moments: Dict[int, List[float]] = {}
    for _, number, moment, _ in _events(job, folder):
        moments.setdefault(number, []).append(moment)
    for number, _, moment in steps:
        moments[int(number)].append(float(moment))
    runs = [[round(edge(found) - submitted, 2) for edge in (min, max)] for found in moments.values()]
    return {
        "way": way.name, "job": job.name, "user": job.user, "steps": steps_of(job), "done": len(steps),
        "different": len({step for _, step, _ in steps}), "runs": runs,
    }  # fmt: skip


def main() -> int:
    """Run the ways and write their rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ways", nargs="*", choices=[[], *WAYS], help=f"of {', '.join(WAYS)} (default: all)")
    parser.add_argument("--out", type=Path, required=True, help="rows are appended")
    args = parser.parse_args()
    for name in args.ways or WAYS:
        say(f"{name}: an hour takes {SECONDS_PER_HOUR:g} s")
        rows = run(WAYS[name], trace(WAYS[name]))
        with open(args.out, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(exit_code(main))
