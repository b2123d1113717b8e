"""Flat tables of numbered layers: torchsummary, modelsummary, pytorch-model-summary.

"Conv2d-1   [-1, 64, 112, 112]   9,408", with a container's row after those of its children.
"""

from __future__ import annotations

import re
from typing import Dict, List, Sequence

from slurm_gpumem.model.cells import ShapeReader, parse_count
from slurm_gpumem.model.finish import finish, read_totals
from slurm_gpumem.model.kinds import is_leaf_kind
from slurm_gpumem.model.rows import Row, unknown_row
from slurm_gpumem.model.tables import Table, is_rule
from slurm_gpumem.model.types import ModelSummary

ROW = re.compile(
    r"\s*(?:([A-Za-z_][\w./]*)\s+)?([A-Za-z_]\w*)-([0-9]+)\s+(\[.*\])\s+([0-9,]+)(?:\s+([0-9,]+))?\s*$"
)


def parse(lines: Sequence[str], table: Table) -> ModelSummary:
    """Read the rows of one table."""
    shows_inputs = "Input Shape" in table.header
    shows_blocks = "Tr. Param #" in table.header
    rows = _read_rows(lines, table)
    _mark_containers(rows, shows_blocks)
    notes: List[str] = []
    format = "pytorch-model-summary" if shows_blocks else "modelsummary" if shows_inputs else "torchsummary"
    if shows_inputs:
        for row in rows:
            row.inputs, row.outputs = row.outputs, ()
    totals = read_totals(lines[table.stop : table.end])
    if totals.trainable == 0 and totals.params:
        for row in rows:
            row.trainable = False
    elif not shows_blocks and 0 < (totals.trainable or 0) < (totals.params or 0):
        notes.append("some parameters are frozen, but the table does not say in which layers")
    parents = [value for row in rows for key, value in row.attributes if key == "parents"]
    root = parents[0].partition("/")[0] if parents else ""
    return finish(format, rows, totals, name=root, closed=table.closed, notes=notes)


def _read_rows(lines: Sequence[str], table: Table) -> List[Row]:
    shapes = ShapeReader()
    rows: List[Row] = []
    for number in range(table.first, table.stop):
        text = lines[number]
        if not text.strip() or is_rule(text, "=-"):
            continue
        match = ROW.match(text)
        outputs = shapes.read(match[4]) if match else None
        params = parse_count(match[5]) if match else None
        if match is None or outputs is None or params is None:
            rows.append(unknown_row(text, number + 1))
            continue
        row = Row(match[2], number + 1)
        row.outputs = outputs
        row.params = params
        if match[1]:
            row.note("parents", match[1])
            row.depth = match[1].count("/")
        if match[6]:
            trainable = parse_count(match[6])
            row.trainable = params == 0 or trainable != 0
            if trainable is not None and 0 < trainable < params:
                row.note("trainable_params", str(trainable))
        rows.append(row)
    if not table.closed:
        # What follows the last row of a table without an end is other output.
        while rows and rows[-1].unknown:
            rows.pop()
    return rows


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
            row.leaf = row.params > 0
