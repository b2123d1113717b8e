"""Forked processes that stay and are told what to do: lines of JSON in, lines of JSON out.

Unlike `children`, which answer once and end, a worker keeps its model on the GPU between orders.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

Message = Dict[str, Any]
Work = Callable[[Callable[[Message], None], Iterator[Message]], None]
"""Gets a function that sends a message to the parent and the parent's orders; ends with them."""


class Worker:
    """One forked process; `say` an order, then `hear` its answer."""

    def __init__(
        self, tag: Any, work: Work, environment: Optional[Mapping[str, str]] = None, uid: int = 0
    ) -> None:
        """`uid`: the user that it runs as; 0 for the parent's own."""
        self.tag = tag
        sys.stdout.flush()
        sys.stderr.flush()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        log = self._log.fileno()
        orders_out, self._orders = os.pipe()
        self._answers, answers_in = os.pipe()
        self._buffer = b""
        self._ended = False
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._orders)
            os.close(self._answers)
            _be_worker(work, (orders_out, answers_in, log), environment or {}, uid)
        os.close(orders_out)
        os.close(answers_in)

    def say(self, order: Message) -> None:
        """Send an order; a worker that has ended shows when its answer is awaited."""
        try:
            os.write(self._orders, json.dumps(order).encode() + b"\n")
        except BrokenPipeError:
            self._ended = True

    def hear(self, deadline: float) -> Message:
        """Its next message; {"error": ...} when it ended or did not answer until `deadline` (monotonic)."""
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                return {"error": "time limit: no answer"}
            chunk = os.read(self._answers, 1 << 16)
            if not chunk:
                return {"error": f"ended: {self._tail()}"}
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Message = json.loads(line)
        return message

    def end(self) -> None:
        """Kill it: nothing it holds is worth a tidy end, and a CUDA context goes faster so."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it ended by itself; waitpid still collects it
        os.waitpid(self.pid, 0)
        os.close(self._orders)
        os.close(self._answers)
        self._log.close()

    def _tail(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 300))
        return " ".join(self._log.read().decode(errors="replace").split())


def end_all(workers: List[Worker]) -> None:
    """End every worker, all signals first, so that their contexts go at the same time."""
    for worker in workers:
        try:
            os.kill(worker.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it ended by itself; `end` collects it
    for worker in workers:
        worker.end()


def _be_worker(work: Work, pipes: Tuple[int, int, int], environment: Mapping[str, str], uid: int) -> None:
    orders, answers, log = pipes
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.environ.update(environment)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if uid:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        work(lambda message: _send(answers, message), _orders(orders))
        code = 0
    except BaseException:  # noqa: BLE001 - the worker's end is its error; the parent reads the log's tail
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _send(pipe: int, message: Message) -> None:
    data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


def _orders(pipe: int) -> Iterator[Message]:
    with os.fdopen(pipe, "rb") as file:
        for line in file:
            yield json.loads(line)
