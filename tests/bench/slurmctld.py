"""What the samplers' questions cost slurmctld: 200 askers while jobs wait in the queue, few and then many.

Run it with `make bench-slurmctld`; exits 1 when a question costs more with the long queue than with the short
one. `squeue -w NODE -t all`, which samplers do not use, stands beside it for comparison. Processor time is
slurmctld's own, from /proc, less what it uses without any question; bytes are what it sends, counted by a
forwarder between squeue and slurmctld.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence, Set, Tuple

from slurm_gpumem.devcluster.cluster import Cluster, up
from slurm_gpumem.devcluster.spec import ClusterSpec
from slurm_gpumem.slurm.state.queue import slurm_job_command

SHORT = 100
AT_A_TIME = 20
CHUNK = 500
IDLE_S = 5.0
JOBS_ON_A_NODE = 8
MOST_GROWTH = 2.0
"""Times; noise of a busy machine is well below it, and the whole queue well above."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """One question, on average."""

    cpu_ms: float
    sent_bytes: float
    seconds: float


class Forwarder:
    """Passes connections on to slurmctld and counts what it sends back."""

    def __init__(self, port: int) -> None:
        self.sent = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._target))
            threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                self.sent += len(data) if counted else 0
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other side has closed first


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000, help="length of the long queue")
    parser.add_argument("--askers", type=int, default=200)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="gpumem-") as name:
        Path(name).chmod(0o755)
        conf = (f"MaxArraySize={args.jobs + 2}", f"MaxJobCount={2 * args.jobs + 1000}")
        cluster = up(ClusterSpec(state=Path(name) / "a", extra_conf=conf))
        try:
            costs = dict(_costs(cluster, length, args.askers) for length in (SHORT, args.jobs))
        finally:
            cluster.stop()
    print(f"{args.askers} askers, {AT_A_TIME} at a time, {os.cpu_count()} processors; cost per question:")
    print(f"{'jobs in the queue':>17}  {'question':<24}{'processor':>12}{'sent':>14}{'answer after':>14}")
    for length, rows in costs.items():
        for question, cost in rows.items():
            print(
                f"{length:>17,}  {question:<24}{cost.cpu_ms:>9.2f} ms{cost.sent_bytes:>12,.0f} B"
                f"{cost.seconds * 1000:>11.0f} ms"
            )
    short, long = (rows["squeue -j JOB"] for rows in costs.values())
    growth = max(long.sent_bytes / short.sent_bytes, long.cpu_ms / max(short.cpu_ms, 0.1))
    fine = growth <= MOST_GROWTH
    print(
        f"a node with {JOBS_ON_A_NODE} shared jobs, per minute: {JOBS_ON_A_NODE * long.cpu_ms:.1f} ms and "
        f"{JOBS_ON_A_NODE * long.sent_bytes / 1024:.0f} KiB; {growth:.2f} x of the short queue "
        f"(limit {MOST_GROWTH:g} x)  {'ok' if fine else 'OVER'}"
    )
    return 0 if fine else 1


def _costs(cluster: Cluster, length: int, askers: int) -> Tuple[int, Dict[str, Cost]]:
    """The number of jobs in the queue, and what each question costs."""
    job_id = _fill(cluster, length)
    return len(_queue(cluster)), {
        "squeue -w NODE -t all": _ask(cluster, ["squeue", "-h", "-w", "n1", "-t", "all"], askers),
        "squeue -j JOB": _ask(cluster, slurm_job_command(job_id), askers),
    }


def _fill(cluster: Cluster, length: int) -> int:
    """Add held jobs up to that length, each with a record of its own; the number of one of them."""
    missing = length - len(_queue(cluster))
    array = cluster.run(
        ["sbatch", "--parsable", "-H", "-o", "/dev/null", f"--array=0-{missing}", "--wrap=true"], check=True
    ).stdout.strip()
    # An array is one record until its tasks differ: a change to some of them makes each a job of its own.
    for first in range(0, missing, CHUNK):
        last = min(first + CHUNK, missing) - 1
        cluster.run(["scontrol", "update", f"jobid={array}_[{first}-{last}]", "nice=7"], check=True)
    return int(next(number for number in _queue(cluster) if number != array))


def _queue(cluster: Cluster) -> Set[str]:
    return set(cluster.run(["squeue", "-h", "-o", "%A"], check=True).stdout.split())


def _ask(cluster: Cluster, argv: List[str], askers: int) -> Cost:
    conf = Path(cluster.env["SLURM_CONF"])
    text = conf.read_text()
    port = next(
        int(line.partition("=")[2]) for line in text.splitlines() if line.startswith("SlurmctldPort=")
    )
    forwarder = Forwarder(port)
    other = conf.with_name("forwarded.conf")
    other.write_text(text.replace(f"SlurmctldPort={port}", f"SlurmctldPort={forwarder.port}"))
    env = {**os.environ, **cluster.env, "SLURM_CONF": str(other)}
    pid = int((cluster.layout.run / "slurmctld.pid").read_text())
    idle_from = _cpu_s(pid)
    time.sleep(IDLE_S)
    idle_part = (_cpu_s(pid) - idle_from) / IDLE_S

    def ask(_: int) -> float:
        began = time.monotonic()
        subprocess.run(argv, env=env, stdout=subprocess.DEVNULL, check=True)
        return time.monotonic() - began

    before, began, sent = _cpu_s(pid), time.monotonic(), forwarder.sent
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        taken = sorted(pool.map(ask, range(askers)))
    used = _cpu_s(pid) - before - idle_part * (time.monotonic() - began)
    return Cost(1000 * max(used, 0.0) / askers, (forwarder.sent - sent) / askers, taken[len(taken) // 2])


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
