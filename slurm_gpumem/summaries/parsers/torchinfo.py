"""Summaries by torchinfo and its forerunner torch-summary: "│    └─Conv2d: 2-1   [1, 64, 56, 56]   4,096"."""

from __future__ import annotations

import re
from math import prod
from typing import Any, Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.summaries.leaf_classes import is_leaf_kind
from slurm_gpumem.summaries.parsers.finish import finish, read_totals
from slurm_gpumem.summaries.parsers.rows import Row, ShapeReader, parse_count, unknown_row
from slurm_gpumem.summaries.parsers.text import Table
from slurm_gpumem.summaries.types import UNKNOWN_KIND, ModelSummary, Shape

# Tree characters, also as a console without Unicode shows them.
_ROW = re.compile(
    "([\\s│├└─┬|+`\ufffd?]*)"
    r"((?:[A-Za-z_]|[0-9]+\.)[\w.]*)(?: \(([^()]*)\))?(?:: ([0-9]{1,4})(?:-[0-9]+)?)?(?:\s+(\S.*))?$"
)
_CELL = re.compile(r"\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]|\S+")
_TITLE = re.compile(r"Kernel Shape|Input Shape|Output Shape|Param #|Param %|Mult-Adds|Trainable")
_DEFAULT_COLUMNS = ("Output Shape", "Param #")
_FLOAT_BYTES = 4
_ROUNDED = 5_001
"""Bytes by which a total in MB with two digits, twice the outputs, may differ from them."""
_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")


def parse(lines: Sequence[str], table: Table) -> ModelSummary:
    """Read the rows of one table."""
    columns = tuple(_TITLE.findall(table.header)) or _DEFAULT_COLUMNS
    rows = _Reader(columns, numbered="depth-idx" in table.header).read(lines, table)
    has_outputs = "Output Shape" in columns
    proven = _shape_tree(rows, has_outputs)
    totals = read_totals(lines[table.stop : table.end])
    if totals.output_bytes is not None and _all_is_shown(rows, totals.output_bytes):
        for row in rows:
            # A proven block may hide what torchinfo does not count: a norm that contains its activation.
            row.hidden = row.hidden and row.params > 0 and proven.get(row.kind, False)
    root = rows[0] if rows and rows[0].depth == 0 and not rows[0].unknown else None
    notes = []
    if "Param #" not in columns:
        notes.append('the table has no "Param #" column: the rows\' parameters are unknown')
    return finish(
        "torchinfo" if root or not _open_batch(rows) else "torch-summary",
        rows,
        totals,
        name=root.kind if root else "",
        input_shapes=root.inputs if root else (),
        closed=table.closed,
        notes=notes,
        deeper="torchinfo with depth=20",
        check_sum="Param #" in columns,
    )


class _Reader:
    """Reads rows with a given set of columns."""

    def __init__(self, columns: Tuple[str, ...], numbered: bool) -> None:
        self._columns = columns
        self._numbered = numbered
        self._shapes = ShapeReader()
        self._rows: List[Row] = []
        # Class and variable name of what stands before a row's number.
        self._heads: Dict[str, Tuple[str, Optional[str]]] = {}
        # What cells say about a class, since real models repeat the same rows: None if not understood.
        self._seen: Dict[Tuple[str, Optional[str]], Optional[Dict[str, Any]]] = {}

    def read(self, lines: Sequence[str], table: Table) -> List[Row]:
        rows = self._rows
        for number in range(table.first, table.stop):
            text = lines[number].rstrip()
            row = self._read_row(text, number + 1)
            if row is not None:
                rows.append(row)
            elif text.strip("=-_ ") and not self._note_parameter(text):
                rows.append(unknown_row(text, number + 1, rows[-1].depth if rows else 0))
        if not table.closed:
            # What follows the last row of a table without an end is other output.
            while rows and rows[-1].unknown:
                rows.pop()
        return rows

    def _read_row(self, text: str, line: int) -> Optional[Row]:
        # Most rows differ from earlier ones in their number only: "└─Conv2d" + ": 3-17" + cells.
        head, _, tail = text.partition(": ")
        number, _, rest = tail.partition(" ")
        known = self._heads.get(head)
        level = number.partition("-")[0]
        if known and level.isdigit() and len(level) < 5:
            kind, variable = known
            depth = int(level)
            rest = rest.lstrip()
        else:
            match = _ROW.match(text)
            if match is None:
                return None
            tree, kind, variable, level, rest = match.groups()
            if level is not None:
                depth = int(level)
                self._heads[head] = kind, variable
            elif self._rows and self._is_parameter(tree, kind, rest):
                return None
            else:
                depth = (len(tree.lstrip()) + 3) // 5 if tree.strip() else 0
        key = (kind, rest)
        try:
            values = self._seen[key]
        except KeyError:
            values = self._seen[key] = self._read_cells(kind, rest)
        if values is None:
            return None
        row = Row(kind, line, depth)
        row.__dict__.update(values)
        if variable:
            row.name = variable
        return row

    def _is_parameter(self, tree: str, name: str, rest: Optional[str]) -> bool:
        """Whether this is a row of verbose=2: "weight  [3, 64, 7, 7]  ├─9,408"."""
        if self._numbered and tree.strip():
            return True
        return "weight" in name or "bias" in name or "├─" in (rest or "") or "└─" in (rest or "")

    def _note_parameter(self, text: str) -> bool:
        """Keep a row of verbose=2 with the layer above it; False if it is none."""
        match = _ROW.match(text)
        if match is None:
            return False
        tree, name, _, level, rest = match.groups()
        if level is not None or not self._rows or not rest or not self._is_parameter(tree, name, rest):
            return False
        cells: List[str] = _CELL.findall(rest)
        self._rows[-1].note(name, cells[0] if cells[0].startswith("[") else cells[-1].lstrip("├└─"))
        return True

    def _read_cells(self, kind: str, rest: Optional[str]) -> Optional[Dict[str, Any]]:
        """Return the fields that the cells give a row of this class; None if they make no sense."""
        row = Row(kind, 0)
        if not self._fill(row, _CELL.findall(rest or "")):
            return None
        return {name: value for name, value in vars(row).items() if name not in ("kind", "line", "depth")}

    def _fill(self, row: Row, cells: List[str]) -> bool:
        """Fill in the row's values; False when they are not what the columns say."""
        if not cells or len(cells) > len(self._columns):
            return False
        row.params_known = False
        for column, cell in zip(self._columns, cells):
            if column == "Output Shape" or column == "Input Shape":
                shapes = self._shapes.read(cell)
                if shapes is None:
                    return False
                if column == "Output Shape":
                    row.outputs = shapes
                else:
                    row.inputs = shapes
            elif column == "Param #":
                if not _fill_params(row, cell):
                    return False
            elif cell == "--":
                continue
            elif column == "Kernel Shape":
                row.kernel = self._read_kernel(row.kind, cell)
            elif column == "Mult-Adds":
                row.note("mult_adds", cell)
            elif column == "Trainable":
                row.trainable = cell != "False"
                if cell == "Partial":
                    row.note("trainable", "partial")
        return True

    def _read_kernel(self, kind: str, cell: str) -> Optional[Shape]:
        if "Conv" not in kind and "Pool" not in kind:
            return None
        if cell.isascii() and cell.isdigit() and len(cell) < 6:
            return (int(cell),)
        shapes = self._shapes.read(cell)
        if not shapes:
            return None
        for dimensions in (1, 2, 3):
            # Before 1.7 "Kernel Shape" was the weight's: [in, out, height, width].
            if f"{dimensions}d" in kind:
                return shapes[0][-dimensions:]
        return shapes[0]


def _fill_params(row: Row, cell: str) -> bool:
    row.params_known = True
    if cell == "--":
        return True
    if cell == "(recursive)":
        row.repeated = True
        return True
    if cell[0] == "(":
        row.trainable = False
    count = parse_count(cell.strip("()"))
    if count is None:
        return False
    row.params = count
    return True


def _open_batch(rows: List[Row]) -> bool:
    return any(shape[0] == -1 for row in rows for shape in row.outputs)


def _shape_tree(rows: List[Row], has_outputs: bool) -> Dict[str, bool]:
    """Tell containers, leaves and blocks cut at the depth limit apart, and give full names.

    Returns what rows above the limit prove about classes: whether they have layers inside.
    """
    deepest = max((row.depth for row in rows), default=0)
    # What rows above the limit prove about a class counts more than its name.
    proven: Dict[str, bool] = {}
    limit = []
    depth = 0
    for row in reversed(rows):
        if depth > row.depth:
            row.leaf = False
            proven[row.kind] = True
        elif row.depth < deepest:
            proven.setdefault(row.kind, False)
        elif deepest > 0:
            limit.append(row)
        depth = row.depth
        if has_outputs and not row.outputs and row.leaf and row.kind != UNKNOWN_KIND:
            row.called = False
    for row in limit:
        if row.kind != UNKNOWN_KIND and _is_block(row, proven):
            row.hidden = row.called = True
    if any(row.name for row in rows):
        _name_paths(rows)
    return proven


def _all_is_shown(rows: List[Row], stated: int) -> bool:
    """Whether the outputs in the table are all that torchinfo counted: then no block hides any."""
    shown = [row.outputs for row in rows if row.leaf and (row.params or row.repeated)]
    numbers = sum(abs(prod(shape)) for outputs in shown for shape in outputs)
    return abs(numbers * _FLOAT_BYTES - stated) <= _ROUNDED


def _name_paths(rows: List[Row]) -> None:
    """Turn variable names into paths: "conv1" into "layer1.0.conv1"."""
    path: List[Tuple[int, str]] = []
    for row in rows:
        while path and path[-1][0] >= row.depth:
            path.pop()
        if row.depth == 0:
            row.name = ""
        elif row.name:
            own = row.name
            row.name = ".".join([*(part for _, part in path), own])
            if not row.leaf:
                path.append((row.depth, own))


def _is_block(row: Row, proven: Dict[str, bool]) -> bool:
    if row.kind in proven:
        return proven[row.kind]
    if is_leaf_kind(row.kind):
        return False
    return row.params > 0 or row.repeated or row.kind in _CONTAINERS
