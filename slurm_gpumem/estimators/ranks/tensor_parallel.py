"""Tensor parallel: the matrix products of each block divided between the ranks.

As transformers' and torchtitan's plans do it: products that widen (queries, keys, values, gate, up) are
divided by columns, those that come back (output, down) by rows, and what is computed between the two is
divided too. Norms, residuals, embeddings and the head stay whole. Which layer is which is known by its name;
a block with a product of another name cannot be divided from a trace.
"""

from __future__ import annotations

from typing import Dict, List, Set, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.ranks.model import BACKWARD, RankModel
from slurm_gpumem.estimators.ranks.strategy import Strategy
from slurm_gpumem.estimators.ranks.units import ROOT, Units, block_names

COLUMNS = frozenset(
    {
        "q_proj", "k_proj", "v_proj", "qkv_proj", "qkv", "wq", "wk", "wv", "c_attn", "query", "key", "value",
        "query_key_value", "gate_proj", "up_proj", "gate_up_proj", "w1", "w3", "c_fc", "fc1", "lin1", "up",
        "gate", "q_lin", "k_lin", "v_lin", "dense_h_to_4h", "fc_in", "intermediate.dense", "Wqkv", "Wi",
    }
)  # fmt: skip
ROWS = frozenset(
    {
        "o_proj", "out_proj", "wo", "proj", "c_proj", "down_proj", "w2", "fc2", "lin2", "down", "out_lin",
        "dense_4h_to_h", "fc_out", "output.dense", "dense", "Wo",
    }
)  # fmt: skip
_PASSES = ("forward", "evaluate", BACKWARD)


def divided(model: RankModel, strategy: Strategy, ranks: int) -> Tuple[str, ...]:
    """Change the model's events to one rank's; returns what was assumed."""
    names = block_names(model, strategy.options["wrap"])
    units = Units(model, names)
    if not names:
        raise UsageError("strategy tp: the trace shows no repeated blocks whose products could be divided")
    columns, rows = _plan(model, units)
    for index, parameter in enumerate(model.parameters):
        bias_of_rows = parameter.module in rows and parameter.rows == parameter.elements
        if parameter.module not in columns | rows or bias_of_rows:
            continue
        for block, owner in model.owner.items():
            if owner == index:
                model.divide(block, ranks)
    _divide_between(model, units, columns, rows, ranks)
    return (
        f"{len(columns)} layers divided by columns and {len(rows)} by rows; the rest whole on every rank",
    )


def _plan(model: RankModel, units: Units) -> Tuple[Set[str], Set[str]]:
    """Layers divided by columns and by rows; UsageError for a block that cannot be divided."""
    columns: Set[str] = set()
    rows: Set[str] = set()
    unknown: List[str] = []
    for parameter in model.parameters:
        layer = model.layers.get(parameter.module)
        if layer is None or units.of(parameter.module) == ROOT or parameter.rows == parameter.elements:
            continue
        last = parameter.module.rpartition(".")[2]
        both = ".".join(parameter.module.split(".")[-2:])
        if last in COLUMNS or both in COLUMNS:
            columns.add(parameter.module)
        elif last in ROWS or both in ROWS:
            rows.add(parameter.module)
        else:
            unknown.append(parameter.module)
    if unknown or not columns or not rows:
        what = unknown[0] if unknown else "its blocks"
        raise UsageError(
            f"strategy tp: the trace does not show how {what} would be divided between GPUs (known by name: "
            "q_proj, up_proj, o_proj, down_proj, ...). fsdp divides any model."
        )
    return columns, rows


def _divide_between(model: RankModel, units: Units, columns: Set[str], rows: Set[str], ranks: int) -> None:
    """Results between a product by columns and the next one by rows are each rank's own part."""
    inside: Dict[str, bool] = {}
    for event in model.stream.events:
        if event.phase not in _PASSES or not event.allocates:
            continue
        site = model.stream.site(event)
        unit = units.of(site.module)
        if unit == ROOT or event.block in model.owner:
            continue
        backward = event.phase == BACKWARD
        # The backward pass enters by the product by rows, whose input's gradient is a part already.
        if site.module in rows:
            inside[unit] = backward
        elif site.module in columns:
            inside[unit] = not backward
        if inside.get(unit) and site.bytes:
            model.divide(event.block, ranks)
