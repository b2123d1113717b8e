"""The jobs that run on GPUs now, of one user or of the whole cluster, as `gpumem top` lists them."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.slurm.client import SlurmClient
from slurm_gpumem.slurm.gres import GPU_GRES, parse_gres, shares
from slurm_gpumem.slurm.node_names import expand_names
from slurm_gpumem.slurm.state.placement import Placement, placements
from slurm_gpumem.slurm.state.queue import TIMEOUT_S, seconds_of

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
