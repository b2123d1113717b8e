"""Short programs on one GPU, each in a child of a process that has imported their packages already.

Importing PyTorch and transformers takes longer than a few steps of training, and time on a GPU is scarce. The
parent never touches CUDA, so that each child begins with a context of its own, as a program does.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, Sequence, Tuple

_POLL_S = 0.02
_END_S = 5.0


def imported(packages: Sequence[str]) -> None:
    """Import what the children need. Asking CUDA whether it is there would spoil it for them: ask NVML."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    for package in packages:
        importlib.import_module(package)


def measured(work: Callable[[], None], seconds: float) -> Dict[str, Any]:
    """Run `work` in a child, for no longer than `seconds`; what it took on the GPU, and how it ended."""
    with tempfile.TemporaryDirectory(prefix="gpumem-forked-") as folder:
        report, output = Path(folder, "report"), Path(folder, "output")
        started = time.monotonic()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            _run(work, report, output)
        peak, code = _watched(child, started + seconds)
        text = output.read_text(errors="replace") if output.exists() else ""
        found = json.loads(report.read_text()) if report.exists() else {}
    return {
        "process_bytes": peak,
        "reserved_bytes": found.get("reserved", 0),
        "allocated_bytes": found.get("allocated", 0),
        "torch": found.get("torch", ""),
        "run_seconds": round(time.monotonic() - started, 1),
        "run_code": code,
        "run_tail": text[-1500:] if code else "",
    }


def _run(work: Callable[[], None], report: Path, output: Path) -> None:
    """The child's life: it never returns."""
    code = 1
    try:
        os.setsid()
        file = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - whatever ends a program; the parent goes on
        traceback.print_exc()
    finally:
        try:
            _write(report)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _write(report: Path) -> None:
    import torch

    if torch.cuda.is_initialized():
        figures = {
            "reserved": torch.cuda.max_memory_reserved(),
            "allocated": torch.cuda.max_memory_allocated(),
            "torch": torch.__version__,
        }
        report.write_text(json.dumps(figures))


def _watched(child: int, latest: float) -> Tuple[int, int]:
    """The child's largest memory on the GPU as NVML counts it, and its exit code."""
    peaks = _counter()
    peak = 0
    signals = [15, 9]
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return peak, os.waitstatus_to_exitcode(status)
        peak = max(peak, peaks(child))
        if time.monotonic() > latest and signals:
            os.killpg(child, signals.pop(0))
            latest += _END_S
        time.sleep(_POLL_S)


def _counter() -> Callable[[int], int]:
    from lab.scripts.gpu_memory import process_peaks

    try:
        process_peaks(os.getpid())
    except Exception as error:  # noqa: BLE001 - NVML's own errors; pynvml may be missing, too
        print(f"no NVML ({error}): the processes' memory is not measured", file=sys.stderr)
        return lambda pid: 0
    return process_peaks
