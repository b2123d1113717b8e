"""Flat tables of numbered layers: torchsummary, modelsummary, pytorch-model-summary.

"Conv2d-1   [-1, 64, 112, 112]   9,408", with a container's row after those of its children.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.summaries.leaf_classes import is_leaf_kind
from slurm_gpumem.summaries.parsers.finish import DEEPER, finish, read_totals
from slurm_gpumem.summaries.parsers.rows import Row, ShapeReader, parse_count, unknown_row
from slurm_gpumem.summaries.parsers.text import Table, is_rule
from slurm_gpumem.summaries.types import ModelSummary

_CELLS = re.compile(r"(\[.*\])\s+([0-9,]+)(?:\s+([0-9,]+))?\s*$")
_UNCOUNTED = ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell")
_BETTER = f"use {DEEPER}"


def parse(lines: Sequence[str], table: Table) -> ModelSummary:
    """Read the rows of one table."""
    shows_inputs = "Input Shape" in table.header
    shows_blocks = "Tr. Param #" in table.header
    rows = _read_rows(lines, table)
    _mark_containers(rows, shows_blocks)
    notes = _limits(rows) if not shows_blocks else []
    format = "pytorch-model-summary" if shows_blocks else "modelsummary" if shows_inputs else "torchsummary"
    if shows_inputs:
        for row in rows:
            row.inputs, row.outputs = row.outputs, ()
    totals = read_totals(lines[table.stop : table.end])
    if totals.trainable == 0 and totals.params:
        for row in rows:
            row.trainable = False
    elif not shows_blocks and 0 < (totals.trainable or 0) < (totals.params or 0):
        notes.append("frozen parameters count as trained: the table does not say which layers have them")
    parents = [value for row in rows for key, value in row.attributes if key == "parents"]
    root = parents[0].partition("/")[0] if parents else ""
    inputs = rows[0].inputs if shows_inputs and rows else ()
    return finish(
        format,
        rows,
        totals,
        name=root,
        input_shapes=inputs,
        closed=table.closed,
        notes=notes,
        deeper="max_depth=None",
    )


def _read_rows(lines: Sequence[str], table: Table) -> List[Row]:
    shapes = ShapeReader()
    # A table repeats few cells often.
    seen: Dict[str, Optional[Dict[str, Any]]] = {}
    rows: List[Row] = []
    for number in range(table.first, table.stop):
        text = lines[number]
        parents, name, cells = _split(text)
        if cells not in seen:
            seen[cells] = _read_cells(cells, shapes)
        values = seen[cells]
        kind, _, index = name.rpartition("-")
        if values is None or not index.isdigit() or not kind.isidentifier():
            if text.strip() and not is_rule(text, "=-"):
                rows.append(unknown_row(text, number + 1))
            continue
        row = Row(kind, number + 1)
        row.__dict__.update(values)
        if parents:
            row.note("parents", parents)
            row.depth = parents.count("/")
        rows.append(row)
    if not table.closed:
        # What follows the last row of a table without an end is other output.
        while rows and rows[-1].unknown:
            rows.pop()
    return rows


def _split(text: str) -> Tuple[str, str, str]:
    """Split into parent layers (mostly none), layer and cells."""
    before, bracket, cells = text.partition("[")
    words = before.split()
    if not bracket or not 0 < len(words) < 3:
        return "", "", ""
    return words[0] if len(words) == 2 else "", words[-1], bracket + cells


def _read_cells(text: str, shapes: ShapeReader) -> Optional[Dict[str, Any]]:
    """Return the fields that the cells give a row; None if they make no sense."""
    match = _CELLS.match(text)
    outputs = shapes.read(match[1]) if match else None
    params = parse_count(match[2]) if match else None
    if match is None or outputs is None or params is None:
        return None
    fields: Dict[str, Any] = {"outputs": outputs, "params": params}
    trainable = parse_count(match[3]) if match[3] else None
    if trainable is not None:
        fields["trainable"] = params == 0 or trainable != 0
        if 0 < trainable < params:
            fields["attributes"] = (("trainable_params", str(trainable)),)
    return fields


def _limits(rows: List[Row]) -> List[str]:
    """Say what torchsummary leaves out: weights of other names than "weight" and "bias", leading sizes."""
    notes = []
    for row in rows:
        row.params_known = row.params > 0 or row.kind not in _UNCOUNTED
    uncounted = sorted({row.kind for row in rows if not row.params_known})
    if uncounted:
        notes.append(f"torchsummary does not count the parameters of {', '.join(uncounted)}: {_BETTER}")
    if any("Window" in row.kind for row in rows):
        notes.append(
            f"torchsummary hides how many windows there are: activations come out too low; {_BETTER}"
        )
    return notes


def _mark_containers(rows: List[Row], shows_blocks: bool) -> None:
    """Tell blocks from layers by their class, since the table shows no nesting.

    torchsummary gives a block's row only its own weight and bias, mostly none. pytorch-model-summary shows
    no block together with its children: there a block's row stands for all of it.
    """
    leaf_kinds: Dict[str, bool] = {}
    for row in rows:
        if row.unknown:
            continue
        leaf = leaf_kinds.get(row.kind)
        if leaf is None:
            leaf = leaf_kinds[row.kind] = is_leaf_kind(row.kind)
        if leaf:
            continue
        if shows_blocks:
            row.hidden = row.params > 0
        else:
            # timm's BatchNormAct2d has weights and, in rows before it, children.
            row.leaf = row.params > 0 and "NormAct" not in row.kind
