"""Find the batch size a summary was made with, from its shapes."""

from __future__ import annotations

from typing import Dict, Optional, Sequence

from slurm_gpumem.summaries.rows import Row
from slurm_gpumem.summaries.types import UNKNOWN_BATCH, Shape, depends_on_batch


def detect_batch(rows: Sequence[Row], inputs: Sequence[Shape] = ()) -> Optional[int]:
    """Return the size that leads most outputs; None when the summary leaves the batch open.

    The first size of the model's output, of its input and of the first layer compete. A size that leads a
    shape counts fully, one that only divides the leading size (windows) or stands elsewhere (time first)
    counts half; so a position embedding of [1, tokens, features] does not make the batch 1.
    """
    shapes: Dict[Shape, int] = {}
    for row in rows:
        if row.leaf:
            for shape in row.outputs:
                shapes[shape] = shapes.get(shape, 0) + 1
    if any(shape[0] == UNKNOWN_BATCH for shape in shapes):
        return None
    whole = rows[0].outputs[0][0] if rows and rows[0].outputs and not rows[0].leaf else 0
    if whole > 1 and all(whole in shape for shape in shapes):
        # The model's own output leads with it and every layer has it, be it behind the time (XLNet).
        return whole
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
