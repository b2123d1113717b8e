"""What all tables have in common: totals, checks against them, and the warnings a reader should see."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence

from slurm_gpumem.model.batch import detect_batch
from slurm_gpumem.model.cells import parse_count
from slurm_gpumem.model.flow import derive_inputs
from slurm_gpumem.model.rows import Row, freeze
from slurm_gpumem.model.types import ModelSummary, Shape

_TOTAL = re.compile(r"[^\w]*(Total|Trainable|Non-trainable) params(?: \((?:Units\.)?(\w+)\))?: *([\d,._']+)")
_UNITS = {"NONE": 1.0, "K": 1e3, "M": 1e6, "MEGABYTES": 1e6, "G": 1e9, "GIGABYTES": 1e9, "T": 1e12}
_DEEPER = "make it again with torchinfo.summary(model, input_size=..., depth=20)"


@dataclass(frozen=True)
class Totals:
    """The parameters a summary states below its table; None where it does not."""

    params: Optional[int] = None
    trainable: Optional[int] = None


def read_totals(lines: Sequence[str]) -> Totals:
    """Read the first "Total params" block of the lines after a table."""
    found: Dict[str, int] = {}
    for line in lines:
        if "params" not in line:
            continue
        match = _TOTAL.match(line)
        if match is None:
            continue
        unit, text = match[2], match[3].rstrip(".")
        if unit is None:
            count = parse_count(text)
        else:
            scaled = text.replace(",", "").count(".") <= 1 and unit in _UNITS
            count = round(float(text.replace(",", "")) * _UNITS[unit]) if scaled else None
        if count is not None:
            found.setdefault(match[1], count)
        if len(found) == 3:
            break
    total, trainable = found.get("Total"), found.get("Trainable")
    if total is None and trainable is not None and "Non-trainable" in found:
        total = trainable + found["Non-trainable"]
    return Totals(total, trainable)


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
) -> ModelSummary:
    """Check the rows against the totals and put the summary together."""
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
            f"the rows add up to {summed:,} parameters but the totals say {totals.params:,}; using the totals"
        )
        complete = complete and summed >= totals.params
    warnings += _about_rows(rows)
    total = summed if totals.params is None else totals.params
    trainable = totals.trainable
    if trainable is None:
        trainable = total - sum(row.params for row in rows if not row.trainable)
    batch = detect_batch(rows, input_shapes)
    derive_inputs(rows, input_shapes)
    return ModelSummary(
        format=format,
        layers=freeze(rows),
        name=name,
        batch=batch,
        input_shapes=tuple(input_shapes),
        total_params=total,
        trainable_params=max(0, min(trainable, total)),
        warnings=tuple(warnings),
        has_shapes=any(row.outputs for row in rows),
        complete=complete,
    )


def _about_rows(rows: List[Row]) -> List[str]:
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
        kinds = [f"{count} x {kind}" for kind, count in hidden.items()]
        shown = ", ".join(kinds[:4]) + (" ..." if len(kinds) > 4 else "")
        warnings.append(f"blocks shown without their inner layers ({shown}): {_DEEPER}")
    if not any(row.outputs for row in rows):
        warnings.append("the summary has no shapes: activations are unknown")
    return warnings
