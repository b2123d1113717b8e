"""A traced model small enough to count by hand: two blocks and a head, three steps, sizes in MiB.

Each block makes two tensors that its backward pass reads, 4 MiB a sample, and returns the second one.
"""

from __future__ import annotations

from typing import Dict, List

from slurm_gpumem.summaries.trace_types import Phase, Site, Trace, TracedJob
from slurm_gpumem.summaries.types import Layer, ModelSummary
from slurm_gpumem.units import MIB

BATCH = 16
_SITES: List[Site] = [
    Site((64 * MIB,), "parameter", "blocks.0.a", "weights"),
    Site((64 * MIB,), "parameter", "blocks.1.a", "weights"),
    Site((16 * MIB,), "parameter", "head", "weights"),
    Site((0, MIB), "aten::empty", "", "inputs"),
    Site((0, 4 * MIB), "aten::mm", "blocks.0.a", "activations"),
    Site((0, 4 * MIB), "aten::relu", "blocks.0.b", "activations"),
    Site((0, 4 * MIB), "aten::mm", "blocks.1.a", "activations"),
    Site((0, 4 * MIB), "aten::relu", "blocks.1.b", "activations"),
    Site((0, 16 * MIB), "aten::mm", "head", "activations"),
    Site((0, 16 * MIB), "aten::_log_softmax", "", "activations"),
    Site((0, 16 * MIB), "aten::_log_softmax_backward_data", "", "activations"),
    Site((0, 4 * MIB), "aten::mm", "blocks.1.b", "activations"),
    Site((0, 4 * MIB), "aten::mm", "blocks.0.b", "activations"),
    Site((64 * MIB,), "aten::mm", "blocks.1.a", "gradients"),
    Site((64 * MIB,), "aten::mm", "blocks.0.a", "gradients"),
    Site((16 * MIB,), "aten::mm", "head", "gradients"),
    Site((64 * MIB,), "aten::zeros_like", "", "optimizer"),
    Site((64 * MIB,), "aten::_foreach_sqrt", "", "activations"),
]


class _Writer:
    def __init__(self) -> None:
        self.events: List[int] = []
        self.phases: List[Phase] = []
        self.blocks = 0
        self._open: Dict[str, int] = {}

    def enter(self, name: str, step: int) -> None:
        self.phases.append(Phase(len(self.events), name, step))

    def take(self, key: str, site: int) -> None:
        self._open[key] = self.blocks
        self.blocks += 1
        self.events.append(site)

    def drop(self, *keys: str) -> None:
        for key in keys:
            self.events.append(self._open.pop(key) - self.blocks)


def small_summary(precision: str = "fp32") -> ModelSummary:
    """The model with its layers and trace."""
    w = _Writer()
    w.enter("setup", 0)
    for at, name in enumerate(("w0", "w1", "wh")):
        w.take(name, at)
    for step in (1, 2, 3):
        w.enter("forward", step)
        w.take("x", 3)
        if step > 1:
            w.drop("g0", "g1", "gh")
        for key, site in (("a0", 4), ("b0", 5), ("a1", 6), ("b1", 7), ("logits", 8), ("log", 9)):
            w.take(key, site)
        w.enter("backward", step)
        w.take("dlog", 10)
        w.drop("log", "logits")
        w.take("gh", 15)
        w.drop("dlog", "b1")
        w.take("d1", 11)
        w.take("g1", 13)
        w.drop("a1", "d1", "b0")
        w.take("d0", 12)
        w.take("g0", 14)
        w.drop("a0", "d0", "x")
        w.enter("optimizer", step)
        if step == 1:
            for key in ("m0", "m1"):
                w.take(key, 16)
        w.take("t0", 17)
        w.take("t1", 17)
        w.drop("t0", "t1")
    trace = Trace(
        job=TracedJob(BATCH, "sgd-momentum", precision),
        way="meta",
        sites=tuple(_SITES),
        events=tuple(w.events),
        phases=tuple(w.phases),
        uses_matmul=True,
    )
    return ModelSummary(
        format="gpumem",
        layers=_layers(),
        name="Small",
        batch=BATCH,
        total_params=36 * MIB,
        trainable_params=36 * MIB,
        trace=trace,
    )


def _layers() -> tuple[Layer, ...]:
    found: List[Layer] = []
    for block in ("blocks.0", "blocks.1"):
        shape = ((BATCH, MIB),)
        found.append(Layer("Block", shape, name=block, depth=1, leaf=False))
        found.append(Layer("Linear", shape, params=16 * MIB, name=f"{block}.a", depth=2))
        found.append(Layer("ReLU", shape, name=f"{block}.b", depth=2))
    found.append(Layer("Linear", ((BATCH, 4 * MIB),), params=4 * MIB, name="head", depth=1))
    return tuple(found)
