"""The probe's own steps, run on the CPU: every stage trains, and what it answers makes an entry."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, Dict

import pytest

from slurm_gpumem.estimators.allocator.allocator import CachingAllocator
from slurm_gpumem.site import calibration_probe as calibrate_probe
from slurm_gpumem.site.calibration_context import calibration
from slurm_gpumem.site.calibration_probe import GpuReading, OwnMemory, VisibleGpu
from slurm_gpumem.units import MIB

torch = pytest.importorskip("torch")


class _Gpu(VisibleGpu):
    """A GPU whose driver counts 400 MiB for us at first and 10 more at each look."""

    def __init__(self) -> None:
        self.looks = 0
        self.name, self.driver = "NVIDIA A100-SXM4-40GB", "550.1"

    def read(self) -> GpuReading:
        self.looks += 1
        used = 0 if self.looks == 1 else 390 + 10 * self.looks
        return GpuReading(used, 40960, {})


class _TorchOnCpu:
    """PyTorch with the CPU in the GPU's place; its allocator's figures are the simulator's."""

    def __init__(self) -> None:
        self.cuda = SimpleNamespace(
            synchronize=lambda: None,
            memory_reserved=lambda: 0,
            memory_allocated=lambda: 0,
            empty_cache=lambda: None,
            get_device_properties=lambda device: SimpleNamespace(major=8, minor=0, multi_processor_count=108),
        )

    def device(self, *_: object) -> Any:
        return torch.device("cpu")

    def autocast(self, *_: object, **__: object) -> Any:
        # Half precision on a CPU is slow and proves nothing here.
        return torch.autocast("cpu", enabled=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _measured(*stages: str) -> Dict[str, Any]:
    gpu = _Gpu()
    result = calibrate_probe._measure(_TorchOnCpu(), list(stages), OwnMemory(gpu), gpu)
    # It crosses a process boundary as JSON.
    answer: Dict[str, Any] = json.loads(json.dumps(result))
    return answer


def test_each_stage_is_measured_and_both_probes_make_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_probe, "_STEPS", 1)
    first, second = _measured("conv", "matmul"), _measured("matmul")
    assert first["outside_mib"] == {"bare": 410, "conv": 420, "matmul": 430}
    assert second["outside_mib"] == {"bare": 410, "matmul": 420}
    entry = dict(calibration(first, second, name="", date="2026-01-31").fields)
    assert (entry["context_mib"], entry["context_conv_mib"], entry["context_matmul_mib"]) == (430, 420, 420)
    assert (entry["compute_capability"], entry["sms"], entry["memory_mib"]) == ("8.0", 108, 40960)


def test_the_rounding_check_frees_only_what_it_has_and_crosses_every_limit() -> None:
    allocator = CachingAllocator()
    allocator.replay(calibrate_probe.ROUNDING_CHECK)
    stats = allocator.stats()
    # 2 MiB (small), 20 (for 1 and 9), 10, 32; then 20 fit into the freed segment and 3 into that of 10.
    assert stats.reserved == (2 + 20 + 10 + 32) * MIB
