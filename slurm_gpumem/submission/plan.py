"""What is asked of Slurm for a job, and all that led to it."""

from __future__ import annotations

import os
from typing import NamedTuple, Optional, Tuple

from slurm_gpumem.submission.needs import NeedOnGpu
from slurm_gpumem.submission.share.host import HostShare
from slurm_gpumem.submission.share.request import GpuRequest
from slurm_gpumem.submission.submission import Submission, Workload

NOT_RUN_YET = "it has not run yet"


class Plan(NamedTuple):
    """What is asked of Slurm for a job, and all that led to it."""

    asked: Submission
    workload: Workload = Workload()
    largest: Optional[NeedOnGpu] = None
    """The job's need on the GPU in reach where it is largest; None when nothing is known of it."""
    request: Optional[GpuRequest] = None
    """None: the job's own GPU options stay as they are."""
    host: HostShare = HostShare(0, 0)
    kept_because: str = ""
    """Why the job's own GPU options stay; empty with a request, which has a reason of its own."""
    guess: bool = False
    """Whether its text shows too little for an estimate; its runs are remembered nevertheless."""
    at_once: Optional[int] = None
    """Of an array whose first task is measured before the others: how many then run at once, 0 for any."""
    warnings: Tuple[str, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether shards (or mps units) are asked for, be it all of a GPU's."""
        return self.request is not None and self.request.units > 0

    @property
    def instance(self) -> bool:
        """Whether a MIG instance is asked for."""
        return self.request is not None and self.request.instance_mib > 0

    @property
    def replaces(self) -> bool:
        """Whether the job's own GPU options give way to others."""
        narrowed = self.request is not None and self.request.narrowed
        return self.shared or self.instance or narrowed or self.at_once is not None

    @property
    def reason(self) -> str:
        """Why the job asks for what it asks for."""
        return self.request.reason if self.request else self.kept_because

    @property
    def unfinished(self) -> str:
        """How much of the script the trace saw that decides, where it did not come to its end; "" else."""
        estimate = self.largest.estimate if self.largest else None
        return self.workload.unfinished if estimate and estimate.margin.group == "trace" else ""

    @property
    def model_name(self) -> str:
        """The model's name: its file's, else the summary's own; empty where there is no model."""
        path, summary = self.asked.settings.model or "", self.workload.summary
        from_file = "\n" not in path and self.asked.raw.summary is None and self.asked.traced is None
        by_file = os.path.splitext(os.path.basename(path))[0] if from_file else ""
        return by_file or (summary.name if summary else "")

    @property
    def script_name(self) -> str:
        """The script's name for people; "job" where it has none."""
        script, command = self.asked.script, self.asked.command
        if command:
            return os.path.basename(command[0])
        return os.path.basename(script.path or "") or "job" if script else "job"

    @property
    def reserved_mib(self) -> int:
        """The GPU memory that the units or the MIG instance asked for stand for; 0 without any."""
        if self.request is None or not self.request.units:
            return self.request.instance_mib if self.request else 0
        policy = self.asked.config.sharing
        if policy.gres == "mps" and self.largest is not None:
            return self.largest.gpu.memory_mib * self.request.units // self.request.per_gpu
        return self.request.units * policy.shard_mib
