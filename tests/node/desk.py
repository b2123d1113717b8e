"""A sampler at work on GPUs that say what the test puts in."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Set, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.live import GpuSample
from slurm_gpumem.node import jobs, records
from slurm_gpumem.node.gpus import NodeGpu
from slurm_gpumem.node.jobs import NodeJob, RunFolder
from slurm_gpumem.node.records import RecordStore
from slurm_gpumem.node.sampler.sampler import Sampler
from slurm_gpumem.node.sources.base import GoneError, GpuProcess, SourceError
from tests.support.waiting import until

GPUS = [NodeGpu(number, f"GPU-0000000{number}", "card", 80_000) for number in range(8)]


class Played:
    """A source that says what the test puts in."""

    name = "played"

    def __init__(self) -> None:
        self.found: Dict[str, Tuple[GpuProcess, ...]] = {}
        self.broken: Dict[str, bool] = {}
        self.pending: List[Tuple[Optional[str], int]] = []
        self.accounts: Dict[int, Tuple[float, float, float]] = {}
        self.samples = 0
        self.total_mib: Dict[str, float] = {}
        self.gone: Set[str] = set()
        self.sm: Dict[str, Optional[float]] = {}

    def sample(self, uuid: str) -> GpuSample:
        if self.broken.get(uuid):
            raise SourceError("nvmlDeviceGetMemoryInfo: NVML error 15")
        self.samples += 1
        total, activity = self.total_mib.get(uuid, 80_000.0), self.sm.get(uuid, 0.5)
        return GpuSample(2000.0, total, sm_active=activity, power_w=300.0)

    def energy_j(self, uuid: str) -> Optional[float]:
        return 100.0 * self.samples

    def processes(self, uuid: str) -> Tuple[GpuProcess, ...]:
        if uuid in self.gone:
            raise GoneError(f"{uuid}: this MIG instance is there no more")
        return self.found.get(uuid, ())

    def xids(self) -> Sequence[Tuple[Optional[str], int]]:
        told, self.pending = self.pending, []
        return told

    def finished(self, uuid: str) -> Dict[int, Tuple[float, float, float]]:
        return self.accounts

    def close(self) -> None:
        return None


class Desk:
    """A sampler at work, with processes of two jobs."""

    def __init__(self, root: Path, squeue: str = "exit 1", **config: object) -> None:
        self.folder = RunFolder(root / "run")
        self.folder.make()
        (root / "bin").mkdir()
        for name, body in (
            ("squeue", squeue),
            ("scontrol", f'[ "$1" = show ] || echo "$@" >>{root}/said'),
            ("scancel", f'echo cancel "$@" >>{root}/said'),
        ):
            (root / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
            (root / "bin" / name).chmod(0o755)
        values = {
            "spool": root / "spool",
            "slurm_bin": root / "bin",
            "slurm_every_s": 0.05,
            "grace_s": 0.0,
            "mps_control": "/nonexistent",
            **config,
        }
        self.config = NodeConfig(**values)  # type: ignore[arg-type]
        self.source = Played()
        self.processes: List[subprocess.Popen[bytes]] = []
        self.root = root
        self.sampler = self.new_sampler()

    def new_sampler(self) -> Sampler:
        return Sampler(self.folder, self.config, "n1", self.source, GPUS)

    def job(
        self,
        job_id: int,
        *,
        mode: str = "timeslice",
        gpu: int = 0,
        gpus: Optional[Tuple[str, ...]] = None,
        claim: Optional[CommentRecord] = None,
        uid: Optional[int] = None,
        restarts: int = 0,
    ) -> None:
        owner, uuids = os.getuid() if uid is None else uid, gpus or (GPUS[gpu].uuid,)
        job = NodeJob(job_id, owner, f"user{job_id}", uuids, mode, time.time(), restarts, claim=claim)
        jobs.put(self.folder, job)

    def close_record(self, job_id: int, status: str) -> None:
        """What an epilog does first."""
        job = jobs.get(self.folder, job_id)
        assert job is not None
        record = records.closed_record(records.open_record(job, "n1"), end=time.time(), status=status)
        store = RecordStore(self.folder, self.config.spool, "n1")
        store.close(record, 1.0)
        store.flush(1.0)

    def process(
        self, job_id: int, uid: Optional[int] = None, program: str = "exec sleep 60", **variables: str
    ) -> int:
        env = {"SLURM_JOB_ID": str(job_id), "PATH": "/usr/bin:/bin", **variables}
        started = subprocess.Popen(["/bin/sh", "-c", program], env=env, user=uid)
        self.processes.append(started)
        name = "sleep\n" if program == "exec sleep 60" else "sh\n"
        until(lambda: Path(f"/proc/{started.pid}/comm").read_text() == name)
        return started.pid

    def hold(self, sizes: Dict[int, float], *, gpu: int = 0, mps: Optional[bool] = None) -> None:
        self.source.found[GPUS[gpu].uuid] = tuple(GpuProcess(pid, mib, mps) for pid, mib in sizes.items())

    def live(self) -> Dict[str, Dict[str, object]]:
        self.sampler._written = float("-inf")
        self.sampler.tick()
        return json.loads(self.folder.live.read_text())["jobs"]

    def said(self) -> str:
        return (self.root / "said").read_text() if (self.root / "said").exists() else ""
