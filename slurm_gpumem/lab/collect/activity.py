"""How busy the GPU is between two moments, by the driver's own counters (GPM: Hopper and later)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Sequence

from slurm_gpumem.errors import UsageError
from slurm_gpumem.lab.collect.workers import Message, Worker

METRICS = {"sm_active": 2, "sm_occupancy": 3, "tensor_active": 5, "dram_active": 10}
"""Name → NVML's number of the GPM metric; all in percent."""


@dataclass
class Moment:
    """The counters at one moment."""

    at: float
    sample: Any
    energy_mj: int


class GpuActivity:
    """Reads one GPU's counters."""

    def __init__(self) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._device = pynvml.nvmlDeviceGetHandleByIndex(0)
        try:
            supported = bool(pynvml.nvmlGpmQueryDeviceSupport(self._device).isSupportedDevice)
        except pynvml.NVMLError:
            supported = False
        if not supported:
            raise UsageError("this GPU or its driver has no GPM counters (Hopper and later have them)")

    def now(self) -> Moment:
        """Read the counters."""
        sample = self._nvml.nvmlGpmSampleAlloc()
        self._nvml.nvmlGpmSampleGet(self._device, sample)
        return Moment(time.monotonic(), sample, self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._device))

    def between(self, first: Moment, last: Moment) -> Dict[str, float]:
        """Percent of each metric, and mean power in watts."""
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(METRICS)
        request.sample1, request.sample2 = first.sample, last.sample
        for place, number in enumerate(METRICS.values()):
            request.metrics[place].metricId = number
        self._nvml.nvmlGpmMetricsGet(request)
        read = {name: round(float(request.metrics[place].value), 3) for place, name in enumerate(METRICS)}
        seconds = last.at - first.at
        read["power_w"] = round((last.energy_mj - first.energy_mj) / 1000 / seconds, 1)
        return read

    def free(self, moment: Moment) -> None:
        """Give the counters' memory back."""
        self._nvml.nvmlGpmSampleFree(moment.sample)


class Watcher:
    """A process that reads the counters at given moments, so that a parent of forks loads no driver."""

    def __init__(self) -> None:
        self._worker = Worker("watcher", _watch)
        answer = self._worker.hear(time.monotonic() + 30)
        if "error" in answer:
            raise UsageError(f"the GPU's activity cannot be read: {answer['error']}")

    def watch(self, moments: Sequence[float]) -> None:
        """Read at these moments (monotonic clock); at once where one is past."""
        self._worker.say({"moments": list(moments)})
        self._due = moments[-1]

    def readings(self) -> Message:
        """`at` (when it read), `windows` (between neighbouring moments), `whole` (first to last)."""
        answer = self._worker.hear(self._due + 20)
        if "error" in answer:
            raise UsageError(f"the GPU's activity cannot be read: {answer['error']}")
        return answer

    def end(self) -> None:
        """End the process."""
        self._worker.end()


def _watch(send: Callable[[Message], None], orders: Iterator[Message]) -> None:
    activity = GpuActivity()
    send({"ready": True})
    for order in orders:
        taken: List[Moment] = []
        for moment in order["moments"]:
            wait_until(moment)
            taken.append(activity.now())
        send(
            {
                "at": [moment.at for moment in taken],
                "windows": [activity.between(a, b) for a, b in zip(taken, taken[1:])],
                "whole": activity.between(taken[0], taken[-1]),
            }
        )
        for moment in taken:
            activity.free(moment)


def wait_until(moment: float) -> None:
    """Sleep until that moment of the monotonic clock."""
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)
