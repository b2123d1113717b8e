"""What the nodes' hooks cost in a burst: 300 array tasks of `true` on three nodes, ours and empty.

Run it with `make bench-hooks`; exits 1 when a ratio is over its limit, a task is held or requeued, a node is
drained or a task has no closed record. The clusters take turns, and the median of the rounds' ratios counts.
Beside the clock it shows the processor time of daemons, hooks and samplers, which other work on the machine
changes little. ARGS="--rounds 1 --tasks 60 --busy 20" for less.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Sequence, Set

from slurm_gpumem.data import data_path
from slurm_gpumem.devcluster.cluster import Cluster, up
from slurm_gpumem.devcluster.spec import ClusterSpec, default_nodes

LIMIT, TASKS, ROUNDS, BUSY = 1.5, 300, 3, 20
_LONGEST_S = 300.0
_RECORDS_S = 30.0
_NOT_OF_A_NODE = re.compile(
    r"^(interval|activity_every|record_every|slurm_every|idle_exit)_s = .*\n", re.MULTILINE
)
"""A dev cluster's samplers look four times as often as those of nodes, to whom a whole machine belongs."""
_HOOKS = {
    "Prolog": "prolog.sh",
    "Epilog": "epilog.sh",
    "TaskProlog": "task_prolog.sh",
    "TaskEpilog": "task_epilog.sh",
}


class Burst(NamedTuple):
    """What became of one array."""

    seconds: float
    held: int
    drained: int
    requeued: int
    tasks: Set[int]
    cpu_s: float
    """Of slurmctld, slurmd, the hooks that they ran, and the samplers."""


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, BUSY], help="busy processes beside it")
    args = parser.parse_args(argv)
    gpusbatch = str(Path(sys.executable).with_name("gpusbatch"))
    ways = {
        "sbatch --gres=shard:1": ["sbatch", "--gres=shard:1"],
        "gpusbatch --gpu-mem=1G": [gpusbatch, "--gpu-mem=1G"],
    }
    fine = True
    with tempfile.TemporaryDirectory(prefix="gpumem-") as name, _clusters(Path(name)) as clusters:
        for busy in args.busy:
            for title, command in ways.items():
                with _busy(busy):
                    bursts = _measure(clusters, command, args.tasks, args.rounds)
                without = _without_record(clusters["ours"], bursts["ours"])
                fine &= _report(f"{title}, {busy} busy processes", bursts, without)
    return 0 if fine else 1


@contextmanager
def _clusters(folder: Path) -> Iterator[Dict[str, Cluster]]:
    folder.chmod(0o755)
    empty = folder / "empty.sh"
    empty.write_text("#!/bin/sh\nexit 0\n")
    empty.chmod(0o755)
    (folder / "job.sh").write_text("#!/bin/sh\ntrue\n")
    nothing = ("PrologFlags=Alloc", *(f"{key}={empty}" for key in _HOOKS))
    ours = [f"{key}={folder}/b/hooks/{name}" for key, name in _HOOKS.items() if key.startswith("Task")]
    clusters = {
        "empty": up(ClusterSpec(nodes=default_nodes(3), state=folder / "a", extra_conf=nothing)),
        "ours": up(
            ClusterSpec(nodes=default_nodes(3), state=folder / "b", hooks=True, extra_conf=tuple(ours))
        ),
    }
    for path in Path(data_path("prolog", "prolog.sh")).parent.glob("*.sh"):
        shutil.copy(path, clusters["ours"].layout.hooks)
    settings = clusters["ours"].layout.site_config
    settings.write_text(_NOT_OF_A_NODE.sub("", settings.read_text()))
    try:
        yield clusters
    finally:
        for cluster in clusters.values():
            cluster.stop()


@contextmanager
def _busy(number: int) -> Iterator[None]:
    loops = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _measure(
    clusters: Dict[str, Cluster], command: List[str], tasks: int, rounds: int
) -> Dict[str, List[Burst]]:
    bursts: Dict[str, List[Burst]] = {name: [] for name in clusters}
    for round_ in range(rounds):
        names = sorted(clusters, reverse=bool(round_ % 2))
        for name in names:
            bursts[name].append(_burst(clusters[name], command, tasks))
    return bursts


def _burst(cluster: Cluster, command: List[str], tasks: int) -> Burst:
    """From the submission until the last task is out of the queue, its Epilog included."""
    # The very first one finds no samplers and starts them; they stay for the next ones, as on a node.
    time.sleep(4.0)
    options = [
        "-o",
        "/dev/null",
        "--mem=10",
        f"--array=1-{tasks}",
        str(cluster.layout.root.parent / "job.sh"),
    ]
    before = _cpu_s(cluster)
    said = cluster.run([*command, *options], check=True, cwd=Path("/")).stdout
    began = time.monotonic()
    (array,) = re.findall(r"Submitted batch job (\d+)", said)
    while time.monotonic() - began < _LONGEST_S:
        left = cluster.run(["squeue", "-h", "-r", "-o", "%T %r"], check=True).stdout.splitlines()
        if not any("held" not in line.lower() for line in left):
            break
        time.sleep(0.1)
    seconds, after = time.monotonic() - began, _cpu_s(cluster)
    cpu_s = sum(spent - before.get(pid, 0.0) for pid, spent in after.items())
    states = cluster.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%T"], check=True).stdout.split()
    drained = sum(state.startswith(("drain", "down")) for state in states)
    shown = cluster.run(["scontrol", "-o", "show", "job", array], check=True).stdout
    runs = {int(job): int(count) for job, count in re.findall(r"^JobId=(\d+) .* Restarts=(\d+)", shown, re.M)}
    cluster.run(["scancel", "-p", "gpu"], check=True)
    if drained:
        cluster.run(["scontrol", "update", "NodeName=ALL", "State=RESUME"])
    return Burst(seconds, len(left), drained, sum(runs.values()), set(runs), cpu_s)


def _cpu_s(cluster: Cluster) -> Dict[int, float]:
    """Processor seconds of the cluster's daemons and samplers, and of their children that have ended."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            about = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            name, _, rest = (entry / "stat").read_text().rpartition(")")
            daemon = "(slurm" in name and "stepd" not in name
            if str(cluster.layout.root).encode() in about and (daemon or b"node.sampler" in about):
                found[int(entry.name)] = sum(map(int, rest.split()[11:15])) / os.sysconf("SC_CLK_TCK")
    return found


def _without_record(cluster: Cluster, bursts: Sequence[Burst]) -> int:
    """How many tasks have no closed record, when those that come late have had their time."""
    missing = {task for burst in bursts for task in burst.tasks}
    deadline = time.monotonic() + _RECORDS_S
    while missing and time.monotonic() < deadline:
        time.sleep(0.5)
        records = [json.loads(path.read_text()) for path in cluster.layout.records.glob("[0-9]*.json")]
        missing -= {record["job_id"] for record in records if record["end"] is not None}
    return len(missing)


def _report(title: str, bursts: Dict[str, List[Burst]], without_record: int) -> bool:
    pairs = list(zip(bursts["ours"], bursts["empty"]))
    ratio = statistics.median(ours.seconds / empty.seconds for ours, empty in pairs)
    spent = statistics.median(ours.cpu_s / empty.cpu_s for ours, empty in pairs)
    processor = {name: " ".join(f"{burst.cpu_s:.1f}" for burst in found) for name, found in bursts.items()}
    times = {name: " ".join(f"{burst.seconds:.1f}" for burst in found) for name, found in bursts.items()}
    words = ("held", "drained", "requeued")
    counts = {word: sum(getattr(burst, word) for burst in bursts["ours"]) for word in words}
    counts["without a record"] = without_record
    fine = ratio <= LIMIT and not any(counts.values())
    print(
        f"{title}: ours / empty {ratio:.2f} x (limit {LIMIT:g} x) {'ok' if fine else 'OVER'}; "
        f"{times['ours']} s / {times['empty']} s; "
        f"processor {spent:.2f} x, {processor['ours']} s / {processor['empty']} s; "
        + ", ".join(f"{number} {word}" for word, number in counts.items()),
        flush=True,
    )
    return fine


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
