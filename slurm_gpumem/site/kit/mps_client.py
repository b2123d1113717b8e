"""A client of MPS for the kit: `python -m slurm_gpumem.site.kit.mps_client PART [NUMBER]`; needs PyTorch.

It says on stdout how far it is, one JSON object a line, and does what a word on stdin says. When stdin ends,
whoever started it is gone, and it ends.

    compute         computes without end and counts
    wait            holds 256 MiB; "compute": with work always queued; "leave", "crash": ends in the middle
    context         has a CUDA context and one small tensor
    grow MIB        allocates until it is refused, or has MIB
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any, Dict, List

from slurm_gpumem.site.calibration_probe import OwnMemory, VisibleGpu
from slurm_gpumem.units import MIB

_HELD_MIB, _BLOCK_MIB, _SIDE = 256, 16, 4096
_SAY_EVERY_S = 0.1


def main(argv: List[str]) -> int:
    """Become that client."""
    part = argv[0]
    memory = OwnMemory(VisibleGpu())
    import torch

    if part == "grow":
        return _grow(torch, memory, int(argv[1]))
    device = torch.device("cuda")
    words = {word: threading.Event() for word in ("compute", "leave", "crash")}
    side = 64 if part == "context" else _SIDE
    held = torch.ones((_HELD_MIB if part == "wait" else 1) * MIB, dtype=torch.uint8, device=device)
    left = torch.randn(side, side, device=device)
    if part != "context":
        (left @ left).sum().item()
    torch.cuda.synchronize()
    _say({"ready": memory.read()[0]})
    threading.Thread(target=_listen, args=(words,), daemon=True).start()
    if part == "compute":
        words["compute"].set()
    words["compute"].wait()
    _compute(torch, left, words, sync=part == "compute")
    del held
    return 0


def _compute(torch: Any, left: Any, words: Dict[str, threading.Event], *, sync: bool) -> None:
    steps, said = 0, time.monotonic()
    while not words["leave"].is_set():
        for _ in range(20):
            right = left @ left
        steps += 20
        if words["crash"].is_set():
            # Between two calls of CUDA; a signal from outside mostly comes within one.
            os.kill(os.getpid(), signal.SIGSEGV)
        # Some work stays queued where it is to end in the middle of it.
        if sync or steps % 400 == 0:
            torch.cuda.synchronize()
        if time.monotonic() - said > _SAY_EVERY_S:
            said = time.monotonic()
            _say({"steps": steps})
    for _ in range(200):
        right = left @ left
    del right


def _grow(torch: Any, memory: OwnMemory, most_mib: int) -> int:
    blocks: List[Any] = []
    refused = ""
    try:
        while len(blocks) * _BLOCK_MIB < most_mib:
            blocks.append(torch.empty(_BLOCK_MIB * MIB, dtype=torch.uint8, device="cuda"))
    except RuntimeError as error:
        refused = type(error).__name__
    torch.cuda.synchronize()
    _say({"held": len(blocks) * _BLOCK_MIB, "process": memory.read()[0], "refused": refused})
    return 0


def _listen(words: Dict[str, threading.Event]) -> None:
    for line in sys.stdin:
        if line.strip() in words:
            words[line.strip()].set()
    os._exit(3)


def _say(what: Dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
