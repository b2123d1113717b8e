"""Summaries by torchinfo and its forerunner torch-summary: "│    └─Conv2d: 2-1   [1, 64, 56, 56]   4,096"."""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.model.cells import ShapeReader, parse_count
from slurm_gpumem.model.finish import finish, read_totals
from slurm_gpumem.model.kinds import is_leaf_kind
from slurm_gpumem.model.rows import Row, unknown_row
from slurm_gpumem.model.tables import Table
from slurm_gpumem.model.types import ModelSummary, Shape

# Tree characters, also as a console without Unicode shows them.
_ROW = re.compile(
    "([\\s│├└─┬|+`\ufffd?]*)"
    r"((?:[A-Za-z_]|[0-9]+\.)[\w.]*)(?: \(([^()]*)\))?(?:: ([0-9]{1,4})(?:-[0-9]+)?)?(?:\s+(\S.*))?$"
)
_CELL = re.compile(r"\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]|\S+")
_TITLE = re.compile(r"Kernel Shape|Input Shape|Output Shape|Param #|Param %|Mult-Adds|Trainable")
_DEFAULT_COLUMNS = ("Output Shape", "Param #")
_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")


def parse(lines: Sequence[str], table: Table) -> ModelSummary:
    """Read the rows of one table."""
    columns = tuple(_TITLE.findall(table.header)) or _DEFAULT_COLUMNS
    rows = _Reader(columns).read(lines, table)
    has_outputs = "Output Shape" in columns
    _shape_tree(rows, has_outputs)
    root = rows[0] if rows and rows[0].depth == 0 and not rows[0].unknown else None
    notes = []
    if "Param #" not in columns:
        notes.append('the table has no "Param #" column: the rows\' parameters are unknown')
    return finish(
        "torchinfo" if root or not _open_batch(rows) else "torch-summary",
        rows,
        read_totals(lines[table.stop : table.end]),
        name=root.kind if root else "",
        input_shapes=root.inputs if root else (),
        closed=table.closed,
        notes=notes,
        check_sum="Param #" in columns,
    )


class _Reader:
    """Reads rows with a given set of columns."""

    def __init__(self, columns: Tuple[str, ...]) -> None:
        self._columns = columns
        self._shapes = ShapeReader()
        self._rows: List[Row] = []

    def read(self, lines: Sequence[str], table: Table) -> List[Row]:
        rows = self._rows
        for number in range(table.first, table.stop):
            text = lines[number].rstrip()
            if text and text.strip("=-_ "):
                self._read_line(text, number + 1)
        if not table.closed:
            # What follows the last row of a table without an end is other output.
            while rows and rows[-1].unknown:
                rows.pop()
        return rows

    def _read_line(self, text: str, line: int) -> None:
        above = self._rows[-1] if self._rows else None
        match = _ROW.match(text)
        if match:
            tree, kind, variable, level, rest = match.groups()
            cells: List[str] = _CELL.findall(rest) if rest else []
            if level is None and cells and above is not None and _is_parameter(kind, cells):
                above.note(kind, cells[0] if cells[0].startswith("[") else cells[-1].lstrip("├└─"))
                return
            row = Row(kind, line)
            if self._fill(row, cells):
                if level is not None:
                    row.depth = int(level)
                elif tree.strip():
                    row.depth = (len(tree.lstrip()) + 3) // 5
                if variable:
                    row.name = variable
                self._rows.append(row)
                return
        self._rows.append(unknown_row(text, line, above.depth if above else 0))

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


def _is_parameter(name: str, cells: List[str]) -> bool:
    """Whether this is a row of verbose=2, about one parameter: "weight  [3, 64, 7, 7]  ├─9,408"."""
    if cells[-1][0] in "├└":
        return True
    last = name.rpartition(".")[2]
    return last.startswith(("weight", "bias"))


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


def _shape_tree(rows: List[Row], has_outputs: bool) -> None:
    """Tell containers, leaves and blocks cut at the depth limit apart, and give full names."""
    deepest = 0
    proven: Dict[str, bool] = {}
    path: List[Tuple[int, str]] = []
    for row, following in zip(rows, [*rows[1:], None]):
        deepest = max(deepest, row.depth)
        row.leaf = following is None or following.depth <= row.depth
        if row.name:
            while path and path[-1][0] >= row.depth:
                path.pop()
            own = row.name
            if row.depth == 0:
                row.name = ""
            else:
                row.name = ".".join([*(part for _, part in path), own])
                if not row.leaf:
                    path.append((row.depth, own))
    for row in rows:
        # What shallower rows prove about a class counts more than its name.
        if row.depth < deepest:
            proven[row.kind] = proven.get(row.kind, False) or not row.leaf
    for row in rows:
        if row.leaf and not row.unknown:
            if 0 < row.depth == deepest:
                row.hidden = _is_block(row, proven)
            row.called = row.hidden or not has_outputs or bool(row.outputs)


def _is_block(row: Row, proven: Dict[str, bool]) -> bool:
    if row.kind in proven:
        return proven[row.kind]
    if is_leaf_kind(row.kind):
        return False
    return row.params > 0 or row.repeated or row.kind in _CONTAINERS
