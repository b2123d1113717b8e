"""Training loops as processes of chosen users, forked from one parent that has imported torch already.

Forked, they start in two seconds instead of ten; each becomes its user before it touches the GPU. They train
until a given moment and answer in JSON lines.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Any, Callable, Dict, Mapping, Optional

KINDS = {
    "small": ("conv-small", 32),
    "conv32": ("conv", 32),
    "conv256": ("conv", 256),
    "text16": ("text", 16),
    "text128": ("text", 128),
}
"""Name → (kind, batch): from a few per cent of the GPU to nearly all of it."""


class OnGpu:
    """A training loop on the GPU."""

    def __init__(self, name: str) -> None:
        import torch

        self.torch = torch
        kind, batch = KINDS[name]
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        self._loss = _conv_loss(torch, kind, batch) if kind != "text" else _text_loss(torch, batch)
        model = self._loss.model  # type: ignore[attr-defined]
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
        self._held: list[Any] = []
        for _ in range(3):
            self.step()

    def step(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._loss().backward()
        self._optimizer.step()
        self.torch.cuda.synchronize()

    def hold(self, mib: int) -> None:
        """Keep that much besides the model, in the way that a large model would."""
        self._held.append(self.torch.empty(mib << 18, device="cuda"))
        self.torch.cuda.synchronize()

    def memory(self) -> Dict[str, Any]:
        return {"reserved_mib": self.torch.cuda.max_memory_reserved() >> 20}


class Played:
    """The same without a GPU, for a rehearsal of the driver."""

    def __init__(self, name: str) -> None:
        self._pause = 0.002 + KINDS[name][1] / 20000

    def step(self) -> None:
        time.sleep(self._pause)

    def hold(self, mib: int) -> None:
        time.sleep(0.2)
        limit = os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "").rpartition("=")[2].rstrip("M")
        if limit and mib > int(limit):
            raise RuntimeError(f"CUDA out of memory. Tried to allocate {mib}.00 MiB. GPU 0 is full (played)")

    def memory(self) -> Dict[str, Any]:
        return {"reserved_mib": 1}


def _conv_loss(torch: Any, kind: str, batch: int) -> Callable[[], Any]:
    nn = torch.nn
    width, size = (16, 64) if kind == "conv-small" else (64, 112)
    layers, before = [], 3
    for number, after in enumerate([width, width, 2 * width, 2 * width, 4 * width, 4 * width]):
        stride = 2 if number in (2, 4) else 1
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(True)]
        before = after
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000)).cuda()
    data = torch.randn(batch, 3, size, size, device="cuda")
    target = torch.randint(0, 1000, (batch,), device="cuda")

    def loss() -> Any:
        return nn.functional.cross_entropy(model(data), target)

    loss.model = model  # type: ignore[attr-defined]
    return loss


def _text_loss(torch: Any, batch: int) -> Callable[[], Any]:
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda()
    data = torch.randn(batch, 128, 768, device="cuda")

    def loss() -> Any:
        return model(data).float().pow(2).mean()

    loss.model = model  # type: ignore[attr-defined]
    return loss


class Worker:
    """One forked process; `built` says whether it came up."""

    def __init__(
        self, name: str, uid: int, environment: Mapping[str, str], played: bool, build_s: float = 20.0
    ) -> None:
        orders_out, self._orders = os.pipe()
        self._answers, answers_in = os.pipe()
        self.name, self.uid, self._buffer = name, uid, b""
        self._began, self._build_s = time.monotonic(), build_s
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._orders)
            os.close(self._answers)
            _live(name, uid, environment, played, orders_out, answers_in)
        os.close(orders_out)
        os.close(answers_in)

    def wait_built(self) -> Dict[str, Any]:
        """Its first answer, with the seconds that it took."""
        answer = self.hear(max(0.1, self._build_s - (time.monotonic() - self._began)))
        return {**answer, "seconds": round(time.monotonic() - self._began, 2)}

    def hear(self, seconds: float) -> Dict[str, Any]:
        """Its next answer; {"error": ...} when none comes in time."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                return {"error": "no answer in time"}
            chunk = os.read(self._answers, 1 << 16)
            if not chunk:
                return {"error": "ended without an answer"}
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(line))

    def train(self, until: float) -> None:
        """Until that moment of time.monotonic(); `hear` has the ends of its steps."""
        try:
            os.write(self._orders, f"{until}\n".encode())
        except BrokenPipeError:
            pass  # it has ended: what it answered before says why

    def end(self) -> None:
        for number in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                break
        os.waitpid(self.pid, 0)
        os.close(self._orders)
        os.close(self._answers)


def rate(answer: Mapping[str, Any], begin: float, end: float) -> Optional[float]:
    """Steps per second between two moments of time.monotonic()."""
    inside = [moment for moment in answer.get("ends", []) if begin <= moment <= end]
    if len(inside) >= 3:
        return (len(inside) - 1) / (inside[-1] - inside[0])
    return len(inside) / (end - begin) if inside else None


def _live(
    name: str, uid: int, environment: Mapping[str, str], played: bool, orders: int, answers: int
) -> None:
    """The child's whole life."""

    def say(**answer: Any) -> None:
        os.write(answers, json.dumps(answer).encode() + b"\n")

    try:
        if os.geteuid() == 0 and uid:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        os.environ.update(environment)
        part: Any = Played(name) if played else OnGpu(name)
        say(built=True, pid=os.getpid())
        for line in os.fdopen(orders):
            until, ends = float(line), []
            while time.monotonic() < until:
                part.step()
                ends.append(round(time.monotonic(), 4))
            say(ends=ends)
    except BaseException as error:  # noqa: BLE001 - what ended it is what is being looked for
        try:
            say(error=(str(error).splitlines() or [type(error).__name__])[0][:200], died=time.monotonic())
        except OSError:
            pass
    finally:
        sys.stdout.flush()
        # Without Python's own clean-up: a context that faulted may hang there.
        os._exit(0)
