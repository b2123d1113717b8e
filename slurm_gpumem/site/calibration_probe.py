"""One process of `gpumem calibrate`: load libraries one after the other and report what each adds.

    python -m slurm_gpumem.site.calibration_probe conv matmul

prints one JSON object: for each stage ("bare", then those named) the process's memory outside the
allocator in MiB; the cuBLAS workspaces; whether the allocator rounds as simulated. It is a separate
process because a loaded library stays loaded. Needs PyTorch, and of this package only what
needs nothing else, so that it runs in any training environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from slurm_gpumem.estimators.allocator.allocator import FREE, CachingAllocator, Event
from slurm_gpumem.node.nvml import Nvml, NvmlError
from slurm_gpumem.units import MIB

# This process's GPU memory, read from NVML for `gpumem calibrate`.
#
# NVML lists processes by the pid of the host. Inside a container our own pid may differ, or the list may be
# empty. So the reader remembers what was there before the process touched the GPU, and uses the one process
# that is new, or else the growth of the whole GPU's memory.


class GpuReading(NamedTuple):
    """One reading of one GPU."""

    used_mib: int
    total_mib: int
    processes: Dict[int, int]
    """MiB by pid, for the processes whose memory is reported."""


class VisibleGpu:
    """The first GPU of CUDA_VISIBLE_DEVICES, an index or a UUID; OSError where no driver answers."""

    def __init__(self, nvml: Optional[Nvml] = None) -> None:
        device = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
        try:
            self.nvml = nvml or Nvml()
            self.uuid = dict(self.nvml.devices())[int(device)] if device.isdigit() else device
            self.name, self.driver = self.nvml.name(self.uuid), self.nvml.driver()
        except NvmlError as error:
            raise OSError(str(error)) from None
        except KeyError:
            raise OSError(f"NVML has no GPU {device}") from None

    def read(self) -> GpuReading:
        """The GPU's memory and its processes' in MiB."""
        used, total = self.nvml.memory_mib(self.uuid) or (0, 0)
        # MPS clients are on some drivers in a list of their own only.
        listed = [*self.nvml.processes(self.uuid), *(self.nvml.mps_processes(self.uuid) or ())]
        return GpuReading(int(used), int(total), {pid: int(mib) for pid, mib in listed if mib is not None})


class OwnMemory:
    """This process's memory on a GPU, relative to what was there before."""

    def __init__(self, gpu: VisibleGpu) -> None:
        """Remember the GPU's current state; call it before the process creates its CUDA context."""
        self._gpu = gpu
        self._before = gpu.read()

    @property
    def crowded(self) -> bool:
        """Whether other processes were there before."""
        return bool(self._before.processes)

    def read(self) -> Tuple[int, str]:
        """MiB of this process, and how they were determined."""
        now = self._gpu.read()
        pid = os.getpid()
        if now.processes.get(pid):
            return now.processes[pid], "NVML, own process"
        new = {p: mib for p, mib in now.processes.items() if p not in self._before.processes and mib}
        if len(new) == 1:
            return next(iter(new.values())), "NVML, the only new process"
        return now.used_mib - self._before.used_mib, "NVML, growth of the whole GPU"


_STEPS = 3
# Sizes around every threshold of the allocator's rules.
ROUNDING_CHECK: Tuple[Event, ...] = (
    ("a", 1),
    ("b", MIB),
    ("c", MIB + 1),
    ("d", 9 * MIB),
    ("e", 10 * MIB),
    ("f", 31 * MIB),
    ("c", FREE),
    ("d", FREE),
    ("g", 20 * MIB),
    ("e", FREE),
    ("h", 3 * MIB),
)


def main(argv: List[str]) -> int:
    """Measure the named stages and print the result."""
    # So that the numbers in CUDA_VISIBLE_DEVICES match NVML's.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if importlib.util.find_spec("torch") is None:
        return _say({"error": "no-torch", "detail": "no module named torch"})
    try:
        gpu = VisibleGpu()
        memory = OwnMemory(gpu)
    except OSError as error:
        return _say({"error": "no-gpu", "detail": str(error)})
    try:
        import torch
    except ImportError as error:
        return _say({"error": "no-torch", "detail": str(error)})
    if not torch.cuda.is_available():
        return _say({"error": "no-gpu", "detail": f"torch {torch.__version__} sees no CUDA device"})
    return _say(_measure(torch, argv, memory, gpu))


def _say(result: Dict[str, Any]) -> int:
    print(json.dumps(result))
    return 0


def _measure(torch: Any, stages: List[str], memory: OwnMemory, gpu: VisibleGpu) -> Dict[str, Any]:
    device = torch.device("cuda", 0)
    outside: Dict[str, int] = {}
    workspaces: List[int] = []
    rounding = _rounding(torch, device)
    outside["bare"], how = _outside(torch, memory)
    for stage in stages:
        if stage == "conv":
            _train(torch, device, *_conv_net(torch, device))
        else:
            workspaces = _workspaces(torch, device)
            _train(torch, device, *_matmul_net(torch, device))
        outside[stage], how = _outside(torch, memory)
    properties = torch.cuda.get_device_properties(device)
    return {
        "outside_mib": outside,
        "workspaces": workspaces,
        "rounding": rounding,
        "how": how,
        "crowded": memory.crowded,
        "gpu": gpu.name,
        "driver": gpu.driver,
        "memory_mib": gpu.read().total_mib,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "sms": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
        "alloc_conf": os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or "",
    }


def _outside(torch: Any, memory: OwnMemory) -> Tuple[int, str]:
    """MiB of the process outside the allocator, and how they were read."""
    torch.cuda.synchronize()
    mib, how = memory.read()
    return mib - torch.cuda.memory_reserved() // MIB, how


def _rounding(torch: Any, device: Any) -> List[List[int]]:
    """Allocated and reserved bytes after each event of ROUNDING_CHECK: real, then simulated."""
    simulated = CachingAllocator()
    live: Dict[object, Any] = {}
    rows: List[List[int]] = []
    for key, size in ROUNDING_CHECK:
        if size == FREE:
            del live[key]
        else:
            live[key] = torch.empty(size, dtype=torch.uint8, device=device)
        simulated.replay([(key, size)])
        stats = simulated.stats()
        rows.append(
            [torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), stats.allocated, stats.reserved]
        )
    live.clear()
    torch.cuda.empty_cache()
    return rows


def _workspaces(torch: Any, device: Any) -> List[int]:
    """Bytes that the first matrix product leaves allocated, forward and in the backward thread."""
    x = torch.ones(256, 256, device=device)
    w = torch.ones(256, 256, device=device, requires_grad=True)
    w.grad = torch.zeros_like(w)
    start = torch.cuda.memory_allocated()
    y = x @ w
    forward = torch.cuda.memory_allocated() - start - y.numel() * y.element_size()
    y.sum().backward()
    del y
    total = torch.cuda.memory_allocated() - start
    return [size for size in (forward, total - forward) if size > 0]


def _conv_net(torch: Any, device: Any) -> Tuple[Any, Any]:
    nn = torch.nn
    net = nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.BatchNorm2d(128),
        nn.ReLU(inplace=True),
        nn.Conv2d(128, 64, 1),
        nn.AdaptiveAvgPool2d(1),
    ).to(device)
    return net, torch.randn(8, 3, 64, 64, device=device)


def _matmul_net(torch: Any, device: Any) -> Tuple[Any, Any]:
    nn = torch.nn
    net = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.LayerNorm(4096), nn.Linear(4096, 1024)).to(
        device
    )
    return net, torch.randn(64, 1024, device=device)


def _train(torch: Any, device: Any, net: Any, batch: Any) -> None:
    """A few real steps, in fp32 and under AMP, so that the kernels of both are loaded."""
    optimizer = torch.optim.Adam(net.parameters())
    for amp in (False, True):
        for _ in range(_STEPS):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
                loss = net(batch).float().pow(2).mean()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
