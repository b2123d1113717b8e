"""The memory ledgers of stand-in GPUs: who holds how much, and the most that each job ever held.

One file per GPU, locked while it is read and written. It needs only the standard library,
so that jobs of any user can run it from a copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple


class LedgerError(Exception):
    """The ledger is missing or invalid."""


class OutOfMemoryError(Exception):
    """The GPU has less free memory than requested; nothing was allocated."""

    def __init__(self, free_mib: int, capacity_mib: int, others: Sequence[Tuple[int, int]]) -> None:
        super().__init__(f"{free_mib} MiB of {capacity_mib} MiB are free")
        self.free_mib = free_mib
        self.capacity_mib = capacity_mib
        self.others = tuple(others)
        """(pid, MiB) of the other processes on this GPU."""


@dataclass(frozen=True)
class LedgerGpu:
    """The ledger of one stand-in GPU."""

    folder: Path
    node: str
    index: int

    @property
    def _path(self) -> Path:
        return self.folder / f"{self.node}-gpu{self.index}.json"

    def hold(self, mib: int, job: str, sm: Optional[float] = None) -> None:
        """Set this process's total to `mib`; raises OutOfMemoryError if that does not fit.

        `sm` is its SM activity, a part of 1.
        """
        with self._opened() as ledger:
            others = [holder for holder in ledger["holders"] if holder["pid"] != os.getpid()]
            used = sum(holder["mib"] for holder in others)
            if used + mib > ledger["capacity_mib"]:
                mine = next((h["mib"] for h in ledger["holders"] if h["pid"] == os.getpid()), 0)
                raise OutOfMemoryError(
                    ledger["capacity_mib"] - used - mine,
                    ledger["capacity_mib"],
                    [(holder["pid"], holder["mib"]) for holder in others],
                )
            me = {"pid": os.getpid(), "start": _start_ticks(os.getpid()), "job": job, "mib": mib, "sm": sm}
            ledger["holders"] = [*others, me]
            ledger["peaks"][job] = max(mib, ledger["peaks"].get(job, 0))

    def release(self) -> None:
        """Release everything that this process holds."""
        with self._opened() as ledger:
            ledger["holders"] = [h for h in ledger["holders"] if h["pid"] != os.getpid()]

    def holders(self) -> Dict[str, int]:
        """MiB that each job holds now."""
        held: Dict[str, int] = {}
        with self._opened() as ledger:
            for holder in ledger["holders"]:
                held[holder["job"]] = held.get(holder["job"], 0) + holder["mib"]
        return held

    def pids(self, job: str) -> List[int]:
        """The processes of a job that hold memory now."""
        with self._opened() as ledger:
            return [holder["pid"] for holder in ledger["holders"] if holder["job"] == job]

    def peaks(self) -> Dict[str, int]:
        """The most MiB that a process of each job ever held here."""
        with self._opened() as ledger:
            return dict(ledger["peaks"])

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Dict[str, Any]]:
        # Without O_CREAT: kernels refuse that for another user's file in shared directories.
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise LedgerError(f"{self._path}: node {self.node} has no GPU {self.index}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            before = os.read(descriptor, 1 << 24)
            ledger = json.loads(before)
            # A killed process cannot release what it held.
            ledger["holders"] = [h for h in ledger["holders"] if _start_ticks(h["pid"]) == h["start"]]
            yield ledger
            after = json.dumps(ledger).encode()
            # One write, padded over the old text: the file is complete even if we are killed.
            os.pwrite(descriptor, after.ljust(len(before)), 0)
            os.ftruncate(descriptor, len(after))
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class StandIn:
    """What a ledger says of its GPU or MIG instance."""

    memory_mib: int
    gpu_type: str = ""
    profile: str = ""
    """ "1g.18gb" of an instance; "" of a whole GPU."""


def create(folder: Path, nodes: Mapping[str, Sequence[StandIn]]) -> None:
    """Create the ledgers of each node's GPUs and instances; every user may write to them."""
    for node, gpus in nodes.items():
        for index, gpu in enumerate(gpus):
            path = LedgerGpu(folder, node, index)._path
            ledger = {"capacity_mib": gpu.memory_mib, "type": gpu.gpu_type, "profile": gpu.profile}
            path.write_text(json.dumps({**ledger, "holders": [], "peaks": {}}))
            path.chmod(0o666)


def all_gpus(folder: Path) -> List[LedgerGpu]:
    """Every GPU that has a ledger here."""
    found = []
    for path in folder.glob("*-gpu*.json"):
        node, _, index = path.stem.rpartition("-gpu")
        found.append(LedgerGpu(folder, node, int(index)))
    return sorted(found, key=lambda gpu: (gpu.node, gpu.index))


def _start_ticks(pid: int) -> Optional[int]:
    """When the process started, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])
