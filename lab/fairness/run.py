"""Run the two users' jobs on a dev cluster of real Slurm daemons.

    python -m lab.fairness.run --out rows.jsonl [--slow-prologs] [WAY ...]

An hour of the trace takes six seconds; a way takes three to five minutes. Every job is a real one that counts
its steps in files (`lab/fairness/trainer.py`); those in slots are submitted with `gpusbatch --slot` and run
under the nodes' hooks. A row is one job: its runs, and the steps that were done.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from lab.command import exit_code
from lab.fairness import trainer
from lab.fairness.workload import LONG, SCALE, SECONDS_PER_HOUR, STEP_S, WAYS, Way, steps_of, trace
from slurm_gpumem.devcluster import hooks
from slurm_gpumem.devcluster.cluster import up
from slurm_gpumem.devcluster.spec import ClusterSpec, Layout, NodeSpec
from slurm_gpumem.errors import DevClusterError
from slurm_gpumem.simulation.types import SimJob
from slurm_gpumem.terminal.say import say

PLACES = 16
CRED_EXPIRE_S = 5
"""Slurm's 120 s would be 20 hours of the trace."""
_PATIENCE_S = 900.0
_SLOW = """#!/bin/bash
case "$*" in *slurm_gpumem.node.hook*) [ $((RANDOM % 10)) -lt 7 ] && sleep 6 ;; esac
exec {python} "$@"
"""
"""A Python that serves seven of ten Prologs too late: they give up after five seconds."""


class Event(NamedTuple):
    """A start or an end that a job noted."""

    kind: str
    run: int
    moment: float
    step: int


class Played:
    """One way on a cluster of its own."""

    def __init__(self, name: str, jobs: Sequence[SimJob], folder: Path, places: int) -> None:
        self._name, self._way, self._jobs, self._places = name, WAYS[name], jobs, places
        self._folder = folder / "jobs"
        self._folder.mkdir()
        self.cluster = up(_spec(self._way, folder / "cluster", places))
        site = self.cluster.layout.site_config
        site.write_text(site.read_text().replace("[devcluster]", "[devcluster]\nleast_slot_s = 1"))
        self._submitted: Dict[str, float] = {}

    def slow_down_prologs(self) -> None:
        """As on a node that is too busy to start a Python in time."""
        slow, conf = self._folder / "slow-python", self.cluster.layout.hooks / "hooks.conf"
        slow.write_text(_SLOW.format(python=sys.executable))
        slow.chmod(0o755)
        conf.write_text(f"{conf.read_text()}python={slow}\n")

    def rows(self) -> List[Dict[str, Any]]:
        """Once every job has ended."""
        long = [job for job in self._jobs if job.user == LONG]
        short = [job for job in self._jobs if job.user != LONG]
        self._set_low("DOWN")
        for job in long:
            self._submit(job)
        self._set_low("UP")
        self._submitted = dict.fromkeys(self._submitted, time.time())
        # Slurm takes seconds for the first starts, which would be hours of the trace.
        self._until(lambda: sum(bool(self._events(job)) for job in long) >= self._places)
        begin = time.time()
        for job in short:
            time.sleep(max(0.0, begin + job.arrival * SCALE - time.time()))
            self._submit(job)
        self._until(lambda: all(self._done(job) for job in self._jobs))
        return [self._row(job) for job in self._jobs]

    def _set_low(self, state: str) -> None:
        """Open or close the long jobs' partition: the first must not start before all of them are there."""
        self.cluster.run(["scontrol", "update", "partition=low", f"state={state}"], check=True)

    def _submit(self, job: SimJob) -> None:
        way, steps = self._way, steps_of(job)
        saves = way.slot_h and job.user == LONG
        partition = "urgent" if way.urgent and job.user != LONG else "low"
        words = [sys.executable, trainer.__file__, self._folder, job.name, steps, f"--step-s={STEP_S}"]
        script = self._folder / f"{job.name}.sh"
        script.write_text(
            f"#!/bin/bash\nexec {' '.join(map(str, words))}{' --checkpoint' if saves else ''}\n"
        )
        argv = ["sbatch"]
        if saves:
            argv = [
                str(Path(sys.executable).with_name("gpusbatch")),
                "--slot",
                f"{way.slot_h * SECONDS_PER_HOUR}s",
            ]
        argv += ["--requeue", "--open-mode=append", f"--output={script.with_suffix('.log')}"]
        argv += [f"--partition={partition}", f"--gres={'shard:20' if way.shares else 'gpu:1'}"]
        argv += ["--cpus-per-task=1", "--mem=100M", "--time=60", str(script)]
        self._submitted[job.name] = time.time()
        done = self.cluster.run(argv, cwd=self._folder)
        if done.returncode:
            raise DevClusterError(f"{job.name} was not submitted: {done.stderr.strip()}")

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                queue = self.cluster.run(["squeue", "-a", "-t", "all"]).stdout
                raise DevClusterError(f"{self._name}: jobs still wait after {_PATIENCE_S:g} s\n{queue}")
            time.sleep(0.25)

    def _done(self, job: SimJob) -> bool:
        return any(event.kind == "end" and event.step >= steps_of(job) for event in self._events(job))

    def _events(self, job: SimJob) -> List[Event]:
        file = self._folder / f"{job.name}.runs"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [Event(kind, int(run), float(moment), int(step)) for kind, run, moment, step in lines]

    def _row(self, job: SimJob) -> Dict[str, Any]:
        """Runs in seconds after the submission; one that was killed ends with its last step."""
        text = (self._folder / f"{job.name}.steps").read_text()
        steps = [
            (int(run), int(step), float(moment)) for run, step, moment in map(str.split, text.splitlines())
        ]
        moments: Dict[int, List[float]] = {}
        for run, moment in [(event.run, event.moment) for event in self._events(job)]:
            moments.setdefault(run, []).append(moment)
        for run, _, moment in steps:
            moments[run].append(moment)
        zero = self._submitted[job.name]
        return {
            "way": self._name, "job": job.name, "user": job.user, "steps": steps_of(job), "done": len(steps),
            "different": len({step for _, step, _ in steps}),
            "runs": [[round(min(run) - zero, 2), round(max(run) - zero, 2)] for run in moments.values()],
        }  # fmt: skip


def play(
    name: str, jobs: Sequence[SimJob], places: int = PLACES, *, slow_prologs: bool = False
) -> List[Dict[str, Any]]:
    """The rows of one way; nothing of its cluster is left."""
    folder = Path(tempfile.mkdtemp(prefix="gpumem-fair-"))
    folder.chmod(0o755)
    try:
        played = Played(name, jobs, folder, places)
        try:
            if slow_prologs:
                played.slow_down_prologs()
            return played.rows()
        finally:
            played.cluster.stop()
    finally:
        shutil.rmtree(folder)


def _spec(way: Way, state: Path, places: int) -> ClusterSpec:
    """Two nodes, with as many places for jobs in every way."""
    gpus = places // (4 if way.shares else 2)
    nodes = tuple(NodeSpec(name, gpus=gpus) for name in ("n1", "n2"))
    low = "PartitionName=low Nodes=ALL PriorityTier=1 DefMemPerCPU=100 State=UP"
    back = [f"{key}={value}" for key, value in hooks.recovery_settings(Layout(state).hooks).items()]
    return ClusterSpec(
        nodes, state=state, cred_expire_s=CRED_EXPIRE_S, hooks=True, extra_conf=(*way.conf, low, *back)
    )


def main() -> int:
    """Run the ways and write their rows."""
    parser = argparse.ArgumentParser(prog="python -m lab.fairness.run", description=__doc__)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(WAYS)} (default: all)")
    parser.add_argument("--out", type=Path, required=True, help="rows are appended")
    parser.add_argument(
        "--slow-prologs", action="store_true", help="most Prologs give up before they are served"
    )
    args = parser.parse_args()
    unknown = [name for name in args.ways if name not in WAYS]
    if unknown:
        parser.error(f"{unknown[0]}: no such way; known: {', '.join(WAYS)}")
    for name in args.ways or WAYS:
        say(f"{name}: {WAYS[name].what}")
        rows = play(name, trace(WAYS[name]), slow_prologs=args.slow_prologs)
        with open(args.out, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(exit_code(main))
