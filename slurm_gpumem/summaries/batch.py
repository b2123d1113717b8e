"""Find the batch size a summary was made with, from its shapes."""

from __future__ import annotations

from typing import Dict, Optional, Sequence

from slurm_gpumem.summaries.parsers.rows import Row
from slurm_gpumem.summaries.types import UNKNOWN_BATCH, Shape, depends_on_batch

_MANY = 4
"""A leading size that one layer in this number has is a common one."""


def detect_batch(rows: Sequence[Row], inputs: Sequence[Shape] = ()) -> Optional[int]:
    """Return the size that leads most outputs; None when the summary leaves the batch open.

    What leads the model's own input or output is the batch if every layer follows it, be it folded into the
    first size (frames, windows, the edges of graphs) or behind the time (XLNet). Else the first size of the
    output, of the input and of the first layer compete: one that leads a shape counts fully, one that only
    divides the leading size or stands elsewhere counts half; so a position embedding of [1, tokens, features]
    does not make the batch 1.
    """
    shapes: Dict[Shape, int] = {}
    for row in rows:
        if row.leaf:
            for shape in row.outputs:
                shapes[shape] = shapes.get(shape, 0) + 1
    if any(shape[0] == UNKNOWN_BATCH for shape in shapes):
        return None
    common = _common(rows, inputs, shapes)
    if common is not None:
        return common
    best, best_score = None, 0.0
    candidates = _candidates(rows, inputs)
    # The time leads most layers of XLNet, but the batch is the one that all have.
    everywhere = [size for size in candidates if all(size in shape for shape in shapes)]
    for candidate in everywhere or candidates:
        score = 0.0
        for shape, count in shapes.items():
            if shape[0] == candidate:
                score += count
            elif depends_on_batch(shape, candidate):
                score += count / 2
        if score > best_score:
            best, best_score = candidate, score
    return best


def _common(rows: Sequence[Row], inputs: Sequence[Shape], shapes: Dict[Shape, int]) -> Optional[int]:
    """The smallest size that leads input, output or many layers and that all layers follow; None: none does.

    Parameters that stand as rows lead with 1 whatever the batch is; an input and an output do not.
    """
    outer = {shape[0] for shape in (*inputs[:1], *(rows[0].outputs[:1] if rows else ())) if len(shape) > 1}
    if outer == {1}:
        return 1
    leads: Dict[int, int] = {}
    for shape, count in shapes.items():
        leads[shape[0]] = leads.get(shape[0], 0) + count
    many = {size for size, count in leads.items() if count * _MANY >= sum(leads.values())}
    for size in sorted(outer | many):
        if size > 1 and all(shape[0] == 1 or depends_on_batch(shape, size) for shape in shapes):
            return size
    return None


def _candidates(rows: Sequence[Row], inputs: Sequence[Shape]) -> Sequence[int]:
    found: Dict[int, None] = {}
    if rows and rows[0].outputs and not rows[0].leaf:
        found[rows[0].outputs[0][0]] = None
    for shape in inputs[:1]:
        found[shape[0]] = None
    leads = [row.outputs[0][0] for row in rows if row.leaf and row.outputs]
    for lead in leads[:1] + leads[-1:]:
        found[lead] = None
    return [size for size in found if size > 0]
