"""A worker that holds one training job: measures its memory, then trains whenever it is told."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List

import torch

from lab.collect.measure import Step, measure_and_keep
from lab.collect.sample import Job
from lab.collect.workers import Message, Work

AHEAD = 2
"""Steps that may be queued on the GPU before the oldest is waited for: never idle, never far ahead."""


def trainer(job: Job, device: str) -> Work:
    """First the row of its memory; then, for each order {"until": T}, the moments its steps ended."""

    def work(send: Callable[[Message], None], orders: Iterator[Message]) -> None:
        row, step = measure_and_keep(job, device)
        send(row)
        if step is None:
            return
        for order in orders:
            send({"ends": train_until(step, float(order["until"]), device)})

    return work


def train_until(step: Step, until: float, device: str) -> List[float]:
    """Train until that moment (monotonic clock); when each step ended, on that clock."""
    ends: List[float] = []
    if device != "cuda":
        while time.monotonic() < until:
            step()
            ends.append(round(time.monotonic(), 5))
        return ends
    queued: Deque[Any] = deque()
    while time.monotonic() < until:
        step()
        event = torch.cuda.Event()
        event.record()
        queued.append(event)
        if len(queued) > AHEAD:
            queued.popleft().synchronize()
            ends.append(round(time.monotonic(), 5))
    for event in queued:
        event.synchronize()
        ends.append(round(time.monotonic(), 5))
    return ends


def steps_between(ends: List[float], first: float, last: float) -> Dict[str, float]:
    """Rate of the steps that ended in that window: from the first such end to the last."""
    inside = [end for end in ends if first <= end <= last]
    if len(inside) < 2:
        return {}
    return {"steps": len(inside), "steps_per_s": round((len(inside) - 1) / (inside[-1] - inside[0]), 4)}
