"""One job of the node's life: trains, overruns its memory or faults, and tells what it saw.

On a GPU it needs torch; with --standin it plays the same part on a stand-in GPU's ledger, so that
the driver can be rehearsed without one. Writes NAME.steps (one JSON line a step) and NAME.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, Optional

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry crash() {
    .reg .u64 %rd<2>;
    .reg .u32 %r<2>;
    mov.u64 %rd1, 16;
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
\0"""


class OnGpu:
    """The part played with torch."""

    def __init__(self, width: int, batch: int) -> None:
        import torch
        from torch import nn

        self.torch = torch
        layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
        for _ in range(5):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        torch.manual_seed(1)
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).cuda()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.x = torch.randn(batch, 3, 64, 64, device="cuda")
        self.y = torch.randint(0, 10, (batch,), device="cuda")
        self.held: list[Any] = []

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = self.torch.nn.functional.cross_entropy(self.net(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def take(self, mib: int) -> None:
        self.held.append(self.torch.ones(mib * 1024 * 1024 // 4, device="cuda"))
        self.torch.cuda.synchronize()

    def device_assert(self) -> None:
        values = self.torch.zeros(10, device="cuda")
        values[self.torch.tensor([1000], device="cuda")].sum().item()

    def illegal_access(self) -> None:
        import ctypes

        cuda = ctypes.CDLL("libcuda.so.1")
        self.torch.cuda.synchronize()
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        for code in (
            cuda.cuModuleLoadData(ctypes.byref(module), PTX),
            cuda.cuModuleGetFunction(ctypes.byref(function), module, b"crash"),
            cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None),
        ):
            if code:
                raise RuntimeError(f"the crash kernel could not be started: CUDA error {code}")
        self.torch.cuda.synchronize()
        raise RuntimeError("the illegal access did no harm")

    def memory(self) -> Dict[str, Any]:
        cuda = self.torch.cuda
        own = _own_nvml_mib()
        reserved = cuda.memory_reserved() / 2**20
        return {
            "reserved_mib": reserved,
            "max_reserved_mib": cuda.max_memory_reserved() / 2**20,
            "nvml_mib": own,
            "context_mib": None if own is None else own - reserved,
        }


class OnLedger:
    """The same part on a stand-in GPU: it obeys the MPS limit and dies when the daemon has faulted."""

    def __init__(self, ledger: str, base_mib: int) -> None:
        sys.path.insert(0, os.path.dirname(ledger))
        from ledger import LedgerGpu  # the dev cluster's, copied beside the folder

        number = int(os.environ.get("SLURM_JOB_GPUS", "0"))
        self.gpu = LedgerGpu(Path(ledger), os.environ.get("SLURMD_NODENAME", os.uname().nodename), number)
        self.pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent"))
        limit = os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")
        self.limit = int(limit.partition("=")[2].rstrip("M")) if limit else 10**9
        self.held = 0
        self.steps = 0
        self.take(base_mib)

    def step(self) -> float:
        time.sleep(0.01)
        if (self.pipe / "faulted").exists():
            raise RuntimeError("CUDA error: unspecified launch failure (stand-in)")
        self.steps += 1
        return 2.3 / (1 + self.steps / 50)

    def take(self, mib: int) -> None:
        if self.held + mib > self.limit:
            raise RuntimeError("CUDA out of memory (stand-in)")
        self.held += mib
        self.gpu.hold(self.held, os.environ.get("SLURM_JOB_ID", "none"))

    def device_assert(self) -> None:
        (self.pipe / "faulted").touch()
        raise RuntimeError("CUDA error: device-side assert triggered (stand-in)")

    def illegal_access(self) -> None:
        (self.pipe / "faulted").touch()
        raise RuntimeError("CUDA error: an illegal memory access was encountered (stand-in)")

    def memory(self) -> Dict[str, Any]:
        return {
            "reserved_mib": self.held,
            "max_reserved_mib": self.held,
            "nvml_mib": self.held,
            "context_mib": 0,
        }


def _own_nvml_mib() -> Optional[float]:
    """What NVML says of this very process; None when it is not in NVML's list."""
    from slurm_gpumem.node.nvml import Nvml, NvmlError

    try:
        nvml = Nvml()
        for _, uuid in nvml.devices():
            for pid, mib in [*nvml.processes(uuid), *(nvml.mps_processes(uuid) or [])]:
                if pid == os.getpid() and mib is not None:
                    return mib
    except (OSError, NvmlError):
        pass
    return None


def _wait_for(path: Path, part: Any, steps: Any, limit_s: float) -> None:
    """Train until the driver gives the sign."""
    deadline = time.monotonic() + limit_s
    while not path.exists() and time.monotonic() < deadline:
        _one_step(part, steps)


def _one_step(part: Any, steps: Any) -> None:
    start = time.time()
    loss = part.step()
    steps.write(json.dumps([round(start, 4), round(time.time() - start, 5), loss]) + "\n")
    steps.flush()


def play(args: argparse.Namespace, part: Any, steps: Any, result: Dict[str, Any]) -> None:
    """The part's course."""
    go = Path(args.go) if args.go else None
    if args.part == "train":
        part.take(args.ballast)
        end = time.monotonic() + args.seconds
        stop = Path(args.go) if args.go else None
        while time.monotonic() < end and not (stop and stop.exists()):
            _one_step(part, steps)
        return
    if go is not None:
        _wait_for(go, part, steps, args.seconds)
    result["acted"] = time.time()
    if args.part == "hog":
        while True:
            result.update(part.memory())
            part.take(256)
            if result["max_reserved_mib"] > args.cap:
                raise RuntimeError(f"nobody stopped it at {args.cap} MiB")
    elif args.part == "assert":
        part.device_assert()
    elif args.part == "illegal":
        part.illegal_access()


def main() -> int:
    """Play one part; the exit code is 1 when it ended in an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("train", "hog", "assert", "illegal"))
    parser.add_argument("--out", required=True, help="path without ending for .steps and .json")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--go", help="train: stop when this file appears; others: act when it appears")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--ballast", type=int, default=1024, help="MiB held besides the model")
    parser.add_argument("--cap", type=int, default=12_000, help="where a hog that nobody stops gives up")
    parser.add_argument("--standin", help="the ledger's folder")
    args = parser.parse_args()
    started = time.time()
    keys = sorted(key for key in os.environ if key.startswith(("CUDA_", "SLURM_JOB_", "SLURM_SHARDS")))
    result: Dict[str, Any] = {
        "part": args.part,
        "pid": os.getpid(),
        "uid": os.getuid(),
        "job": os.environ.get("SLURM_JOB_ID"),
        "started": started,
        "env": {key: os.environ[key] for key in keys},
        "error": None,
    }
    part: Any = None
    with open(f"{args.out}.steps", "w", encoding="utf-8") as steps:
        try:
            part = OnLedger(args.standin, 512) if args.standin else OnGpu(args.width, args.batch)
            play(args, part, steps, result)
        except Exception as error:  # noqa: BLE001 - the error is what is being looked for
            result["error"] = f"{type(error).__name__}: {error}"[:600]
            result["died"] = time.time()
            if args.part == "hog":
                time.sleep(2.5)  # A look a second: let the sampler see how full it was.
    try:
        if part is not None and (result["error"] is None or args.part != "hog"):
            result.update(part.memory())
    except Exception as error:  # noqa: BLE001 - after a fault the context cannot be asked any more
        result["memory_error"] = f"{type(error).__name__}: {error}"[:200]
    result["ended"] = time.time()
    temporary = Path(f"{args.out}.json.tmp")
    temporary.write_text(json.dumps(result))
    temporary.replace(f"{args.out}.json")
    if args.standin and part is not None:
        part.gpu.release()
    if result["error"]:
        # At the end of the log, where the task epilog reads it.
        print(result["error"], file=sys.stderr, flush=True)
    sys.stdout.flush()
    # Without Python's own clean-up: a context that faulted may hang there.
    os._exit(1 if result["error"] else 0)


if __name__ == "__main__":
    main()
