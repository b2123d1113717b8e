"""From the trace of one process to that of one rank of several."""

from __future__ import annotations

from functools import lru_cache
from typing import Callable, Dict, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.ranks import ddp, fsdp, pipeline, tensor_parallel, zero
from slurm_gpumem.estimators.ranks.model import RankModel
from slurm_gpumem.estimators.ranks.strategy import DEFAULT, Strategy, parse_strategy
from slurm_gpumem.summaries.trace_types import BUCKET, NCCL, NCCL_FIRST_GROUP, Trace
from slurm_gpumem.summaries.types import Layer

_Change = Callable[[RankModel, Strategy, int], Tuple[str, ...]]
_CHANGES: Dict[str, _Change] = {
    "ddp": ddp.replicated,
    "fsdp": fsdp.sharded,
    "fsdp-grad-op": fsdp.sharded,
    "fsdp1": fsdp.sharded,
    "fsdp1-grad-op": fsdp.sharded,
    "zero1": zero.partitioned,
    "zero2": zero.partitioned,
    "zero3": zero.partitioned,
    "tp": tensor_parallel.divided,
    "pp": pipeline.divided,
}


@lru_cache(maxsize=16)
def rank_trace(
    trace: Trace, layers: Tuple[Layer, ...], text: str, ranks: int
) -> Tuple[Trace, Tuple[str, ...]]:
    """The trace of the rank that needs most, and what was assumed; UsageError where it cannot be divided."""
    strategy = parse_strategy(text or DEFAULT)
    if not any(phase.name == "backward" for phase in trace.phases):
        if not text:
            return trace, ("every GPU holds the whole model",)
        raise UsageError(
            f"strategy {strategy.name}: the trace has no backward pass; only training is divided between GPUs"
        )
    wrapped = any(site.operator == BUCKET for site in trace.sites)
    if wrapped and strategy.name == DEFAULT:
        return trace, ("its buckets are in the trace",)
    if wrapped:
        raise UsageError(f"strategy {strategy.name}: the traced script wraps its model in DDP itself")
    model = RankModel(trace, layers)
    if strategy.name != DEFAULT:
        model.refuse_unknown()
    assumed = _CHANGES[strategy.name](model, strategy, ranks)
    _nccl(model)
    said = (f"one of {ranks} ranks under {strategy.title}: computed, not measured", *assumed)
    return model.changed(), said


def _nccl(model: RankModel) -> None:
    """NCCL's own memory, as it was measured for a group of one process."""
    if any(site.operator == NCCL for site in model.trace.sites):
        return
    events = model.stream.events
    first = next((at for at, e in enumerate(events) if e.phase != "setup"), len(events))
    events.insert(first, model.take(NCCL_FIRST_GROUP, NCCL, "workspace", events[max(first - 1, 0)]))
