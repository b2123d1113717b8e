"""Measurements from NVML: memory, utilization and power everywhere; GPM's counters on Hopper and later.

A MIG instance is a device of its own for memory, processes and GPM. The driver has power, energy,
utilization and its accounting for whole GPUs only: of an instance they are not known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

from slurm_gpumem.formats.live import GpuSample
from slurm_gpumem.node.gpus import is_instance
from slurm_gpumem.node.nvml import MigDevice, Nvml, NvmlError
from slurm_gpumem.node.sources.base import MEASURES, GoneError, GpuProcess, SourceError

_CLIENTS_EVERY = 10
_GPM_METRICS = {measure.field: measure.gpm for measure in MEASURES if measure.gpm is not None}
_MEASURES = {measure.field: measure for measure in MEASURES}


@dataclass(frozen=True)
class _Clients:
    """Which of the processes on a GPU are MPS clients."""

    pids: Optional[FrozenSet[int]]
    """None when the driver cannot tell."""
    listed: FrozenSet[int]
    """All that were there when it was asked."""
    readings_left: int


class NvmlSource:
    """What every driver has."""

    name = "nvml"

    def __init__(self, nvml: Nvml, uuids: List[str]) -> None:
        self.nvml = nvml
        self._clients: Dict[str, _Clients] = {}
        nvml.watch_xids(uuids)

    def sample(self, uuid: str) -> GpuSample:
        whole = self.instance(uuid) is None
        try:
            memory = self.nvml.memory_mib(uuid)
            return GpuSample(
                memory_used_mib=memory[0] if memory else None,
                memory_total_mib=memory[1] if memory else None,
                utilization=self.nvml.utilization(uuid) if whole else None,
                power_w=self.nvml.power_w(uuid) if whole else None,
            )
        except NvmlError as error:
            self.nvml.forget(uuid)
            raise SourceError(str(error)) from None

    def instance(self, uuid: str) -> Optional[MigDevice]:
        """The MIG instance that has this UUID, None for a whole GPU; GoneError when it is there no more."""
        if not is_instance(uuid):
            return None
        try:
            found = self.nvml.instance(uuid)
        except NvmlError as error:
            raise SourceError(str(error)) from None
        if found is None:
            raise GoneError(f"{uuid}: this MIG instance is there no more")
        return found

    def energy_j(self, uuid: str) -> Optional[float]:
        if is_instance(uuid):
            return None
        try:
            return self.nvml.energy_j(uuid)
        except NvmlError as error:
            raise SourceError(str(error)) from None

    def processes(self, uuid: str) -> Tuple[GpuProcess, ...]:
        self.instance(uuid)
        try:
            found: Dict[int, Optional[float]] = dict(self.nvml.processes(uuid))
            known = self._clients[uuid] = self._look_for_clients(uuid, found, self._clients.get(uuid))
        except NvmlError as error:
            self._clients.pop(uuid, None)
            self.nvml.forget(uuid)
            raise SourceError(str(error)) from None
        return tuple(
            GpuProcess(pid, mib, None if known.pids is None else pid in known.pids)
            for pid, mib in found.items()
        )

    def _look_for_clients(
        self, uuid: str, found: Dict[int, Optional[float]], known: Optional[_Clients]
    ) -> _Clients:
        """Which processes are MPS clients: an expensive call, made when one is new and every few readings."""
        if known is not None and known.readings_left and known.listed.issuperset(found):
            return replace(known, readings_left=known.readings_left - 1)
        clients = self.nvml.mps_processes(uuid)
        if clients is None:
            return _Clients(None, frozenset(found), _CLIENTS_EVERY)
        # Drivers differ in whether the plain list has the MPS clients too; without them, ask each time.
        complete = all(found.get(pid) is not None for pid, _ in clients)
        for pid, mib in clients:
            if found.get(pid) is None:
                found[pid] = mib
        pids = frozenset(pid for pid, _ in clients)
        return _Clients(pids, frozenset(found), _CLIENTS_EVERY if complete else 0)

    def xids(self) -> Sequence[Tuple[Optional[str], int]]:
        return self.nvml.xids()

    def finished(self, uuid: str) -> Dict[int, Tuple[float, float, float]]:
        if is_instance(uuid):
            return {}
        try:
            return self.nvml.accounting_peaks(uuid)
        except NvmlError as error:
            raise SourceError(str(error)) from None

    def close(self) -> None:
        self.nvml.close()


class OverNvml:
    """NVML for all but the samples: what sources have in common that lay other values over its."""

    def __init__(self, base: NvmlSource) -> None:
        self._base = base

    def energy_j(self, uuid: str) -> Optional[float]:
        return self._base.energy_j(uuid)

    def processes(self, uuid: str) -> Tuple[GpuProcess, ...]:
        return self._base.processes(uuid)

    def xids(self) -> Sequence[Tuple[Optional[str], int]]:
        return self._base.xids()

    def finished(self, uuid: str) -> Dict[int, Tuple[float, float, float]]:
        return self._base.finished(uuid)

    def close(self) -> None:
        self._base.close()


class GpmSource(OverNvml):
    """NVML, with activities and what PCIe and NVLink carry from two successive GPM samples."""

    name = "gpm"

    def __init__(self, base: NvmlSource) -> None:
        super().__init__(base)
        self._samples: Dict[str, Tuple[Any, Any]] = {}
        """Per GPU: the sample before, and the one to fill next."""

    def sample(self, uuid: str) -> GpuSample:
        plain = self._base.sample(uuid)
        try:
            before, spare = self._samples.get(uuid, (None, None))
            now = self._base.nvml.gpm_sample(uuid, spare, self._base.instance(uuid))
            if now is None:
                return plain
            self._samples[uuid] = (now, before)
            if before is None:
                return plain
            found = self._base.nvml.gpm_metrics(before, now, _GPM_METRICS)
            return plain._replace(**{name: _checked(name, value) for name, value in found.items()})
        except NvmlError as error:
            self._samples.pop(uuid, None)
            raise SourceError(str(error)) from None


def _checked(field: str, value: Optional[float]) -> Optional[float]:
    measure = _MEASURES[field]
    return None if value is None else measure.checked(value if measure.rate else value / 100)
