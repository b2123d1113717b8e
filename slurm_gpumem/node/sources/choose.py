"""The choice of the best source that this node has."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.files import read_json
from slurm_gpumem.formats.live import GpuSample
from slurm_gpumem.node.gpus import NodeGpu, standin_gpus
from slurm_gpumem.node.processes import environment, start_of
from slurm_gpumem.node.sources.base import GpuProcess, MetricSource, NoSource, SourceError


def choose_source(config: NodeConfig, node: str, gpus: Sequence[NodeGpu]) -> MetricSource:
    """The configured source, or the best of DCGM, GPM and NVML that answers; NoSource when none does."""
    if config.ledger is not None or config.source == "standin":
        return StandinSource(config.ledger, node)
    from slurm_gpumem.node.nvml import Nvml, NvmlError
    from slurm_gpumem.node.sources.nvml import GpmSource, NvmlSource

    try:
        nvml = Nvml()
        indexes = {uuid: index for index, uuid in nvml.devices()}
        base = NvmlSource(nvml, list(indexes))
    except (OSError, NvmlError):
        return NoSource()
    counters = any(nvml.gpm_supported(uuid) for uuid in indexes)
    if config.source in ("auto", "dcgm") and shutil.which("dcgmi"):
        from slurm_gpumem.node.sources.dcgm import answering_source

        dcgm = answering_source(base, indexes, config.interval_s, GpmSource(base) if counters else None)
        if dcgm is not None:
            return dcgm
    if config.source in ("auto", "gpm") and counters:
        return GpmSource(base)
    return base


class StandinSource(NoSource):
    """The ledger as a metric source; it knows memory, SM activity where jobs name it, and no power."""

    name = "standin"

    def __init__(self, ledger: Optional[Path], node: str) -> None:
        self._paths = (
            {}
            if ledger is None
            else {gpu.uuid: ledger / f"{node}-gpu{gpu.number}.json" for gpu in standin_gpus(ledger, node)}
        )
        self._mps: Dict[Tuple[int, int], bool] = {}

    def sample(self, uuid: str) -> GpuSample:
        ledger = self._ledger(uuid)
        holders = self._holders(ledger)
        active = [holder["sm"] for holder in holders if isinstance(holder.get("sm"), float)]
        return GpuSample(
            memory_used_mib=sum(holder["mib"] for holder in holders),
            memory_total_mib=ledger["capacity_mib"],
            sm_active=min(1.0, sum(active)) if active else None,
        )

    def processes(self, uuid: str) -> Tuple[GpuProcess, ...]:
        return tuple(
            GpuProcess(holder["pid"], float(holder["mib"]), self._is_client(holder["pid"], holder["start"]))
            for holder in self._holders(self._ledger(uuid))
        )

    def _ledger(self, uuid: str) -> Dict[str, Any]:
        path = self._paths.get(uuid)
        # Written in place: a read that meets a write sees no JSON, and the next one does.
        ledger = None if path is None else read_json(path) or read_json(path)
        if not isinstance(ledger, dict) or "holders" not in ledger:
            raise SourceError(f"{path or uuid}: no ledger of a stand-in GPU")
        return ledger

    def _holders(self, ledger: Dict[str, Any]) -> List[Dict[str, Any]]:
        return [holder for holder in ledger["holders"] if start_of(holder["pid"]) == holder["start"]]

    def _is_client(self, pid: int, start: int) -> bool:
        # A real client is one that found the daemon's pipe; a stand-in is one that was pointed at it.
        if (pid, start) not in self._mps:
            self._mps[pid, start] = "CUDA_MPS_PIPE_DIRECTORY" in environment(pid)
        return self._mps[pid, start]
