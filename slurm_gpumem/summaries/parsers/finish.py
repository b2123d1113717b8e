"""What all tables have in common: totals, checks against them, and the warnings a reader should see."""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Sequence

from slurm_gpumem.summaries.formats import BY_NAME
from slurm_gpumem.summaries.parsers.flow import derive_inputs, derive_outputs
from slurm_gpumem.summaries.parsers.rows import Row, freeze, parse_count, parse_decimal
from slurm_gpumem.summaries.types import UNKNOWN_BATCH, ModelSummary, Shape, depends_on_batch

# Find the batch size a summary was made with, from its shapes.


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


_TOTAL = re.compile(r"[^\w]*(Total|Trainable|Non-trainable) params(?: \((?:Units\.)?(\w+)\))?: *([0-9,._']+)")
# Twice the outputs of every layer with parameters, also of those that the table's depth hides.
_OUTPUTS = re.compile(r"[^\w]*Forward/backward pass size \(MB\): *([0-9,]+(?:\.[0-9]+)?)")
_INPUTS = re.compile(r"[^\w]*Input size \(MB\): *([0-9,]+(?:\.[0-9]+)?)")
_UNITS = {"NONE": 1.0, "K": 1e3, "M": 1e6, "MEGABYTES": 1e6, "G": 1e9, "GIGABYTES": 1e9, "T": 1e12}
# Below this many parameters a weight counted twice does not change the answer.
_TIE_MATTERS = 1_000_000
NO_SHAPES = "the summary has no shapes: activations are unknown"
DEEPER = "torchinfo.summary(model, input_size=..., depth=20)"


class Totals(NamedTuple):
    """The parameters a summary states below its table; None where it does not."""

    params: Optional[int] = None
    trainable: Optional[int] = None
    output_bytes: Optional[int] = None
    input_bytes: Optional[int] = None


def read_totals(lines: Sequence[str]) -> Totals:
    """Read the first "Total params" block of the lines after a table."""
    found: Dict[str, int] = {}
    outputs = inputs = None
    for line in lines:
        if "params" not in line:
            if "Input size" in line:
                inputs = _bytes(_INPUTS.match(line))
            elif "pass size" in line:
                outputs = _bytes(_OUTPUTS.match(line))
                break
            continue
        match = _TOTAL.match(line)
        if match is None:
            continue
        unit, text = match[2], match[3].rstrip(".")
        if unit is None:
            count = parse_count(text)
        else:
            number = parse_decimal(text)
            count = None if number is None or unit not in _UNITS else round(number * _UNITS[unit])
        if count is not None:
            found.setdefault(match[1], count)
    total, trainable = found.get("Total"), found.get("Trainable")
    if total is None and trainable is not None and "Non-trainable" in found:
        total = trainable + found["Non-trainable"]
    return Totals(total, trainable, None if outputs is None else round(outputs / 2), inputs)


def _bytes(stated: Optional[re.Match[str]]) -> Optional[int]:
    megabytes = parse_decimal(stated[1]) if stated else None
    return None if megabytes is None else round(megabytes * 1e6)


def finish(
    format: str,
    rows: List[Row],
    totals: Totals,
    *,
    name: str = "",
    input_shapes: Sequence[Shape] = (),
    closed: bool = True,
    notes: Sequence[str] = (),
    check_sum: bool = True,
    deeper: str = DEEPER,
) -> ModelSummary:
    """Check the rows against the totals and put the summary together; `format` is a name in formats.py."""
    shows = BY_NAME[format].shows
    warnings: List[str] = list(notes)
    summed = sum(row.params for row in rows)
    complete = closed and totals.params is not None
    if not closed and rows:
        warnings.append(
            f"the table is cut off after line {rows[-1].line}: layers are missing, the estimate is too low"
        )
    elif totals.params is None:
        warnings.append("the totals below the table are missing: the summary may be cut off")
    elif totals.params != summed and check_sum:
        warnings.append(
            f"the rows add up to {summed:,} parameters but the totals say {totals.params:,}; using the larger"
        )
        complete = complete and summed >= totals.params
    remarks = _count_attention(rows)
    if not any(row.outputs for row in rows):
        derive_outputs(rows)
    batch = detect_batch(rows, input_shapes)
    derive_inputs(rows, input_shapes)
    warnings += _about_rows(rows, deeper)
    remarks += _about_ties(rows)
    summed = sum(row.params for row in rows)
    total = max(summed, totals.params or 0)
    if totals.params is not None and totals.trainable is not None:
        frozen = totals.params - totals.trainable
    else:
        frozen = sum(row.params for row in rows if not row.trainable)
    return ModelSummary(
        format=format,
        layers=freeze(rows),
        name=name,
        batch=batch,
        input_shapes=tuple(input_shapes),
        total_params=total,
        trainable_params=max(0, min(total - frozen, total)),
        warnings=tuple(warnings),
        remarks=tuple(remarks),
        has_shapes=any(row.outputs for row in rows),
        complete=complete,
        output_bytes=totals.output_bytes if shows.total_outputs else None,
        input_bytes=totals.input_bytes if shows.total_outputs else None,
        shows=shows,
    )


def _about_rows(rows: List[Row], deeper: str) -> List[str]:
    warnings = []
    unknown = [row for row in rows if row.unknown]
    if unknown:
        shown = ", ".join(f"line {row.line} {row.attributes[0][1]!r}" for row in unknown[:3])
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        warnings.append(f"not understood, kept as unknown layers: {shown}{more}")
    hidden: Dict[str, int] = {}
    for row in rows:
        if row.hidden:
            hidden[row.kind] = hidden.get(row.kind, 0) + 1
    if hidden:
        kinds = [f"{hidden[kind]} x {kind}" for kind in sorted(hidden, key=lambda kind: -hidden[kind])]
        shown = ", ".join(kinds[:2]) + (" ..." if len(kinds) > 2 else "")
        warnings.append(f"blocks without their inner layers ({shown}) are guessed: use {deeper}")
    if not any(row.outputs for row in rows):
        warnings.append(NO_SHAPES)
    return warnings


def _count_attention(rows: List[Row]) -> List[str]:
    """Count what torchsummary and torchinfo before 1.7 leave out: MultiheadAttention's own weights."""
    filled = 0
    for row in rows:
        if row.kind == "MultiheadAttention" and not (row.params or row.repeated) and row.leaf and row.outputs:
            width = row.outputs[0][-1]
            # Four projections with bias, as torch makes them by default.
            row.params = 4 * width * (width + 1)
            row.params_known = True
            row.derived = (*row.derived, "params")
            filled += row.params
    if not filled:
        return []
    return [
        f"the tool does not count MultiheadAttention's weights: {filled:,} parameters added from its width"
    ]


def _about_ties(rows: List[Row]) -> List[str]:
    """Point out weights that may be one tensor used twice; the text looks the same either way."""
    embeddings: Dict[int, Row] = {}
    for row in rows:
        if row.params < _TIE_MATTERS or row.repeated or row.hidden:
            continue
        embedding = "Embedding" in row.kind
        first = embeddings.get(row.params)
        if first is not None and (embedding or row.kind.endswith("Linear")):
            return [
                f"{first.kind} (line {first.line}) and {row.kind} (line {row.line}) may be one weight "
                f"of {row.params:,} parameters"
            ]
        if embedding:
            embeddings[row.params] = row
    return []
