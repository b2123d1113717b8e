"""What the learned correction looks at: numbers that the structural estimate has at hand anyway.

One function for fitting and for the submit path, so that both see the same numbers. Everything is a share,
a flag or a logarithm of a size; the batch size itself is not among them, it acts through the sizes.
"""

from __future__ import annotations

from math import log, log1p
from typing import Dict, List, Tuple

from slurm_gpumem.estimators.structural.kinds import family_of, is_attention
from slurm_gpumem.estimators.structural.replay import Replay
from slurm_gpumem.estimators.structural.stream import ACTIVATIONS, GRADIENTS, OPTIMIZER, WEIGHTS, WORKSPACE
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import MIB

KINDS = (
    "conv",
    "linear",
    "norm",
    "act",
    "attention",
    "rnn",
    "pool",
    "embedding",
    "dropout",
    "loss",
    "other",
    "unknown",
)
_KIND_OF = {
    "conv": "conv",
    "conv_transpose": "conv",
    "linear": "linear",
    "mha": "attention",
    "rnn": "rnn",
    "rnn_cell": "rnn",
    "embedding": "embedding",
    "embedding_bag": "embedding",
    "rotary": "attention",
    "dropout": "dropout",
    "drop_path": "dropout",
    "max_pool": "pool",
    "avg_pool": "pool",
    "global_pool": "pool",
    "relu": "act",
    "hard": "act",
    "composed_act": "act",
    "softmax": "act",
    "output_act": "act",
    "input_act": "act",
}
NAMES = (
    "log_total",
    "log_reserved_ratio",
    "share_weights",
    "share_gradients",
    "share_optimizer",
    "share_activations",
    "share_workspace",
    "peak_in_optimizer",
    "peak_in_forward",
    "torchsummary",
    "shapeless",
    "incomplete",
    "guessed",
    "hidden_params",
    "hidden_rows",
    "rows_without_inputs",
    "uncalled_params",
    "amp",
    "half_weights",
    "channels_last",
    "checkpointing",
    "accumulation",
    "optimizer_states",
    "optimizer_temporaries",
    "log_ops",
    "log_tensor_mib",
    "largest_share",
    "depthwise",
    "conv_1d",
    "conv_3d",
    "unknown_rows",
    "made_up",
    "saved_per_shown",
    "saved_per_total",
    *(f"saved_{kind}" for kind in KINDS),
)
FROM_RELATIVES = ("relatives_beyond", "log_relatives", "relatives_apart")
"""What relatives add to that; see relatives.py."""
KNOWN = (*NAMES, *FROM_RELATIVES)


def kind_of(label: str) -> str:
    """The kind (one of KINDS) of an operation by its module's class."""
    if label == "loss":
        return "loss"
    family = family_of(label)
    if family:
        return "norm" if "norm" in family else _KIND_OF.get(family, "other")
    return "attention" if is_attention(label) else "unknown"


def features(summary: ModelSummary, walk: Walk, result: Replay, total_mib: float) -> List[float]:
    """The numbers by NAMES; `total_mib` is the estimate with the context of the GPU of the measurements."""
    at_peak = result.at_peak
    total = total_mib * MIB
    stats = result.stats
    job = walk.job
    rows, hidden_rows, hidden_params, uncalled, without_inputs, params = 0, 0, 0, 0, 0, 1
    depthwise, conv_1d, conv_3d, convs, unknown, shown = 0, 0, 0, 1, 0, 0
    for layer in summary.layers:
        params += layer.params
        if not layer.called:
            uncalled += layer.params
        if not layer.leaf:
            continue
        rows += 1
        if layer.hidden:
            hidden_rows += 1
            hidden_params += layer.params
        if not layer.inputs or "inputs" in layer.derived:
            without_inputs += 1
        family = family_of(layer.kind)
        if family == "conv":
            convs += 1
            rank = len(layer.outputs[0]) if layer.outputs else 4
            conv_1d += rank == 3 or "1d" in layer.kind
            conv_3d += rank == 5 or "3d" in layer.kind
            if layer.outputs and rank > 1 and layer.params < 64 * abs(layer.outputs[0][1]):
                depthwise += 1
        else:
            unknown += not family
        if layer.outputs:
            shown += walk.count(layer.outputs[0])
    rows = max(rows, 1)
    saved, largest = saved_by_kind(walk)
    saved_total = sum(saved.values()) or 1
    ops = len(walk.tape.ops) or 1
    return [
        log(total_mib),
        log((stats.peak_reserved + MIB) / (stats.peak_allocated + MIB)),
        at_peak[WEIGHTS] / total,
        at_peak[GRADIENTS] / total,
        at_peak[OPTIMIZER] / total,
        at_peak[ACTIVATIONS] / total,
        at_peak[WORKSPACE] / total,
        float(result.phase == "optimizer"),
        float(result.phase == "forward"),
        # The fit calls texts without nesting by the tool that wrote all of those that it has seen.
        float(not summary.shows.nesting),
        float(not summary.has_shapes),
        float(not summary.complete),
        float(walk.has_guesses),
        hidden_params / params,
        hidden_rows / rows,
        without_inputs / rows,
        uncalled / params,
        float(job.amp),
        float(job.precision == "bf16"),
        float(job.channels_last),
        float(job.checkpointing),
        float(job.grad_accumulation > 1),
        float(job.optimizer_rule.states),
        float(job.optimizer_rule.temporaries),
        log(ops),
        log1p(saved_total / ops / MIB),
        largest / total,
        depthwise / convs,
        conv_1d / convs,
        conv_3d / convs,
        unknown / rows,
        min(1.0, walk.made_up / saved_total),
        _log_ratio(saved_total, shown * walk.low),
        _log_ratio(saved_total, _told(summary, walk)),
        *(saved[kind] / saved_total for kind in KINDS),
    ]


def _told(summary: ModelSummary, walk: Walk) -> float:
    """Bytes of all outputs at the job's batch, as the text's totals tell; 0 where they do not."""
    if not summary.output_bytes or not summary.batch:
        return 0.0
    return summary.output_bytes / 4 / summary.batch * walk.job.batch_size * walk.low


def _log_ratio(part: float, whole: float) -> float:
    """How many times the whole a part is, as a logarithm within a factor of e²; 0 when nothing is known."""
    return max(-2.0, min(2.0, log(part / whole))) if part > 0 and whole > 0 else 0.0


def saved_by_kind(walk: Walk) -> Tuple[Dict[str, int], int]:
    """Bytes kept for the backward pass by the kind of the operation that first keeps them; the largest."""
    saved = dict.fromkeys(KINDS, 0)
    seen = set()
    largest = 0
    sizes = walk.tape.sizes
    kinds: Dict[str, str] = {}
    for op in walk.tape.ops:
        kind = kinds.get(op.label)
        if kind is None:
            kind = kinds[op.label] = kind_of(op.label)
        for store in (*op.saved, *op.kept):
            if store not in seen:
                seen.add(store)
                saved[kind] += sizes[store]
                if sizes[store] > largest:
                    largest = sizes[store]
    return saved, largest
