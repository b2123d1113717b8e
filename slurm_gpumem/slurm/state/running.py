"""The jobs that run on GPUs now, of one user or of the whole cluster, as `gpumem top` lists them."""

from __future__ import annotations

import os
import re
import subprocess
from typing import IO, List, NamedTuple, Optional, Tuple

from slurm_gpumem.errors import SlurmError, UsageError
from slurm_gpumem.slurm.client import Commands, SlurmClient
from slurm_gpumem.slurm.gres import GPU_GRES, parse_gres, shares
from slurm_gpumem.slurm.node_names import expand_names
from slurm_gpumem.slurm.state.queue import TIMEOUT_S, seconds_of

# Where Slurm put a job: which GPUs of which node, and how much of each.


# [0-9], not \d: numbers of Slurm are ASCII.
_PER_NODE = re.compile(r"Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_PLACED = re.compile(r"([^,()]+)\(([^)]*)\)")
_USED = re.compile(r"([0-9]+)/([0-9]+)")


class Placement(NamedTuple):
    """A job's part of one GPU."""

    node: str
    gpu: int
    gres: str
    """"gpu", "shard" or "mps"."""
    units: int
    """Shards or mps units on this GPU; 1 for a whole one."""


def placements(job_text: str) -> List[Placement]:
    """The GPUs in the text of `scontrol show job -d`; none while the job waits."""
    found: List[Placement] = []
    for nodes, gres in _PER_NODE.findall(job_text):
        for item, where in _PLACED.findall(gres):
            for name, _, count in parse_gres(item):
                on_each = _on_gpus(where, count) if name in GPU_GRES else []
                found += [
                    Placement(node, gpu, name, units) for node in _names(nodes) for gpu, units in on_each
                ]
    return found


def _names(nodes: str) -> List[str]:
    """Nodes on which a job has the same are written as one: "n[1-2]"."""
    try:
        return expand_names(nodes)
    except UsageError:
        return [nodes]


def _on_gpus(where: str, count: int) -> List[tuple[int, int]]:
    if where.startswith("IDX:"):
        # 22.05 tells the GPUs, not how much of each; a shared job is on one of them only.
        gpus = _indices(where[len("IDX:") :])
        return [(gpu, count // len(gpus)) for gpu in gpus]
    # From 24.11 on: what is used of each GPU, in order.
    used = [int(units) for units, _ in _USED.findall(where)]
    return [(gpu, units) for gpu, units in enumerate(used) if units]


def _indices(text: str) -> List[int]:
    """The numbers of "0,2-3"; none of "N/A"."""
    numbers: List[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal():
            numbers += range(int(first), int(last or first) + 1)
    return numbers


_COLUMNS = (
    ("JobID", 16), ("JobArrayID", 40), ("UserID", 16), ("RestartCnt", 8), ("TimeLeft", 20), ("UserName", 64),
    ("tres-per-node", 128), ("tres-per-job", 128), ("tres-per-task", 128), ("NodeList", 400), ("Name", 64),
)  # fmt: skip
"""Fixed widths, so that no name can pose as another column."""
_FORMAT = ",".join(f"{name}:{width}" for name, width in _COLUMNS)
_NUMBER = re.compile(r"[0-9]+")


class RunningJob(NamedTuple):
    """A running job with a GPU or a share of one."""

    job_id: int
    shown: str
    """As squeue shows it: "4711" or "4711_3"."""
    uid: int
    restarts: int
    user: str
    name: str
    nodes: Tuple[str, ...]
    shares: Optional[int]
    """Shards (or mps units) on each node; None for whole GPUs."""
    left_s: Optional[float]
    """Until its time limit; None without one."""

    @property
    def place(self) -> Tuple[int, ...]:
        """By this, jobs stand in the order of their numbers and tasks in the order of their array."""
        return tuple(int(number) for number in _NUMBER.findall(self.shown)) or (self.job_id,)


def running_gpu_jobs(client: SlurmClient, uid: Optional[int] = None) -> List[RunningJob]:
    """Those of one user, for which the controller looks at that user's jobs alone; else everybody's."""
    who = ["-a"] if uid is None else ["-u", str(uid)]
    argv = ["squeue", "-h", *who, "-t", "RUNNING", "-O", _FORMAT]
    found = map(_parse, client.run(argv, timeout_s=TIMEOUT_S).split("\n"))
    return sorted((job for job in found if job is not None), key=lambda job: job.place)


def placed(client: SlurmClient, shown: str) -> List[Placement]:
    """Which GPUs a running job is on, by the name that squeue shows: its number may mean its whole array."""
    return placements(client.run(["scontrol", "-d", "show", "job", shown], timeout_s=TIMEOUT_S))


def _parse(line: str) -> Optional[RunningJob]:
    cells, at = {}, 0
    for name, width in _COLUMNS:
        cells[name] = line[at : at + width].strip()
        at += width
    request = ",".join(cells[name] for name in ("tres-per-node", "tres-per-job", "tres-per-task"))
    on_gpus = any(name in GPU_GRES and count for name, _, count in parse_gres(request))
    if not cells["JobID"].isdigit() or not cells["UserID"].isdigit() or not on_gpus:
        return None
    return RunningJob(
        job_id=int(cells["JobID"]),
        shown=cells["JobArrayID"],
        uid=int(cells["UserID"]),
        restarts=int(cells["RestartCnt"]) if cells["RestartCnt"].isdigit() else 0,
        user=cells["UserName"],
        name=cells["Name"],
        nodes=_nodes(cells["NodeList"]),
        shares=shares(request),
        left_s=seconds_of(cells["TimeLeft"]),
    )


def _nodes(text: str) -> Tuple[str, ...]:
    try:
        return tuple(expand_names(text))
    except UsageError:
        return ()  # cut at the column's end: a job on hundreds of nodes shares no GPU


# Read a small file on a job's node again and again, through one step of that job.
#
# `srun --jobid JOB --overlap` works for the job's owner on 22.05, 24.11 and 26.05, takes no resources from
# the job, and is asked for once: the step then prints the file by itself, so that the controller has
# nothing more to do.

_LOOP = 'while cat -- "$1"; do sleep "$2"; done'
_MOST_BYTES = 1 << 20
_CLOSE_S = 2.0


class FileOnNode:
    """One step; `latest` never waits."""

    def __init__(self, commands: Commands, job_id: int, node: str, path: str, every_s: float) -> None:
        self.job_id = job_id
        self.failed = ""
        """Why there is nothing more to come; "" while it goes on."""
        self._text = b""
        step = ["--jobid", str(job_id), "--overlap", "-N1", "-n1", "-w", node, "--gres=none", "--mem=0"]
        shell = ["sh", "-c", _LOOP, "sh", path, f"{every_s:g}"]
        self._step: Optional[subprocess.Popen[bytes]] = None
        try:
            self._step = commands.start(
                ["srun", "--quiet", *step, *shell], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except SlurmError as error:
            self.failed = str(error)
            return
        for pipe in (self._step.stdout, self._step.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    def latest(self) -> Optional[str]:
        """The last complete line so far; None before the first."""
        step = self._step
        if step is not None:
            self._text += _read(step.stdout)
            if step.poll() is not None and not self.failed:
                # What came between the first read and its end.
                self._text += _read(step.stdout)
                said = _read(step.stderr).decode(errors="replace").strip().split("\n")[0]
                self.failed = said or f"srun ended with {step.returncode}"
        before, newline, rest = self._text.rpartition(b"\n")
        self._text = before.rpartition(b"\n")[2] + newline + rest[:_MOST_BYTES] if newline else self._text
        return self._text.rpartition(b"\n")[0].decode(errors="replace") if newline else None

    def close(self) -> None:
        """End the step."""
        if self._step is None or self._step.poll() is not None:
            return
        self._step.terminate()
        try:
            self._step.wait(timeout=_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._step.kill()
            self._step.wait()


def _read(pipe: Optional[IO[bytes]]) -> bytes:
    """What has come by now."""
    assert pipe is not None
    try:
        return os.read(pipe.fileno(), _MOST_BYTES)
    except BlockingIOError:
        return b""
