"""How large a model is, roughly and without a GPU: parameters, bytes kept per sample, operations.

Used to choose batch sizes and to keep the sum of what runs at once under the GPU's memory. It is a
guess for planning, never a measured value.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Set
from unittest import mock

import torch
from torch import Tensor

from lab.collect.build import build_model
from lab.collect.entries import Entry
from lab.collect.tasks import Feed, task_named
from lab.places import FOOTPRINTS
from slurm_gpumem.units import MIB

_IMAGES = """video image segment detect hf-image hf-segment hf-video denoise reconstruct vae upscale frames
image-text"""
_POWER = {"volume": 3, "whisper": 0, **dict.fromkeys(_IMAGES.split(), 2)}
"""How activations grow with the size, where not in proportion."""
_STATES = {"adam": 2, "adamw": 2, "sgd": 0, "sgd-momentum": 1}
_RATE = {"fp32": 40e12, "tf32": 150e12, "amp-fp16": 250e12, "amp-bf16": 250e12, "bf16": 300e12}


@dataclass(frozen=True)
class Footprint:
    """Bytes of parameters, bytes kept for backward per sample, forward operations per sample."""

    parameters: float
    saved: float
    flops: float

    def scaled(self, task: str, size: int, reference: int) -> Footprint:
        """The footprint at another image side or sequence length."""
        factor = (size / reference) ** _POWER.get(task, 1)
        return Footprint(self.parameters, self.saved * factor, self.flops * factor)

    def fixed_mib(self, optimizer: str, precision: str) -> float:
        """Memory that does not depend on the batch."""
        width = 0.5 if precision == "bf16" else 1.5 if precision.startswith("amp") else 1.0
        return 850 + self.parameters * (3 + _STATES[optimizer]) * max(width, 0.5) / MIB

    def per_sample_mib(self, precision: str) -> float:
        """Memory that one more sample takes."""
        width = 1.0 if precision in ("fp32", "tf32") else 0.5 if precision == "bf16" else 0.65
        return max(self.saved * width * 1.2 / MIB, 1e-4)

    def expected_mib(self, batch: int, optimizer: str, precision: str) -> float:
        """A guess of the process's memory."""
        return self.fixed_mib(optimizer, precision) + batch * self.per_sample_mib(precision)

    def step_seconds(self, batch: int, precision: str) -> float:
        """A guess of one step's time on a large GPU of its own."""
        return 3 * self.flops * batch / _RATE[precision]


@contextmanager
def values_are_one() -> Iterator[None]:
    """Where a model asks a tensor without data for its value ("is all of the mask set?"), it is 1."""

    def answer(kind: Callable[[int], Any], real: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        return lambda t: kind(1) if t.device.type == "meta" else real(t)

    with ExitStack() as stack:
        for name, kind in (("__bool__", bool), ("__int__", int), ("__float__", float), ("item", int)):
            stack.enter_context(mock.patch.object(Tensor, name, answer(kind, getattr(Tensor, name))))
        yield


def measure_footprint(entry: Entry, batch: int = 2) -> Dict[str, Any]:
    """Trace one training step without data, as far as the model allows; on the CPU otherwise."""
    troubles: List[str] = []
    # Operations are not counted where the counter refuses: a gradient taken inside forward.
    for built_on, run_on, counted in (
        ("meta", "meta", True),
        ("meta", "meta", False),
        ("cpu", "meta", True),
        ("cpu", "cpu", True),
    ):
        try:
            return _trace(entry, torch.device(built_on), torch.device(run_on), batch, counted)
        except Exception as error:  # noqa: BLE001 - models refuse tensors without data in many ways
            troubles.append(f"{built_on}/{run_on}: {type(error).__name__}: {str(error)[:150]}")
    raise RuntimeError("; ".join(troubles))


def _trace(
    entry: Entry, built_on: torch.device, device: torch.device, batch: int, counted: bool
) -> Dict[str, Any]:
    from torch.utils.flop_counter import FlopCounterMode

    size = entry.sizes[0]
    with torch.device(built_on):
        model = build_model(entry, size)
    model = model.to(device)
    make, loss_of = task_named(entry.task)
    feed = Feed(batch, size, device, torch.float32, entry.task_args, getattr(model, "config", None))
    own: Set[int] = {id(p) for p in model.parameters()}
    kept: Dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        if id(t) not in own:
            storage = t.untyped_storage()
            kept[storage._cdata] = storage.nbytes()
        return t

    data = make(feed)
    counter = FlopCounterMode(display=False)
    with (
        counter if counted else nullcontext(),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
        values_are_one(),
    ):
        loss = loss_of(model(*data.args, **data.kwargs), data.target)
    loss.backward()
    weights = sum(p.numel() * 4 for p in model.parameters())
    return {
        "parameters": weights,
        "saved": sum(kept.values()) // batch,
        "flops": counter.get_total_flops() // batch if counted else 0,
        "device": device.type,
    }


def load_footprints(path: Path = FOOTPRINTS) -> Dict[str, Footprint]:
    """The table of footprints by entry id; empty when it was never made."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text())
    return {
        name: Footprint(r["parameters"], r["saved"], r["flops"]) for name, r in rows.items() if "saved" in r
    }
