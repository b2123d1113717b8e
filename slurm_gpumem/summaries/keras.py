"""Keras's model.summary(), with plain columns (Keras 2) or boxes (Keras 3).

Cells that do not fit go on in the next line, so a row is collected before it is read.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.summaries.cells import ShapeReader, parse_count
from slurm_gpumem.summaries.finish import finish, read_totals
from slurm_gpumem.summaries.rows import Row, unknown_row
from slurm_gpumem.summaries.tables import Table
from slurm_gpumem.summaries.types import ModelSummary, Shape

# Titles may be cut ("Para", "Trai…").
_TITLE = re.compile(r"Layer \(type\)|Outp\w*(?: Shape)?|Para\w*(?: #)?|Conn\w*(?: to)?|Trai\w*")
_FULL_TITLES = {
    "Laye": "Layer (type)",
    "Outp": "Output Shape",
    "Para": "Param #",
    "Conn": "Connected to",
    "Trai": "Trainable",
}
_NAME = re.compile(r"([^\s()│└]*)\s*\(([^\s()…]*)([)…]*)$")
_MODEL = re.compile(r'\s*Model: "([^"]{1,100})"')
_RULES = "─━═-_=¯ │┃├┤┼╇╈┡┩┏┓┳└┘┴╞╡|"
_BOX_RULES = ("├", "└", "┡", "┏")
_NO_SHAPE = ("?", "multiple", "unused", "")
_DERIVED = ("inputs",)
_MODELS = ("Functional", "Sequential", "Model")
# Class names as long as Keras cuts them; a cut name stands for the only one that begins like it.
_NAMES = """AdditiveAttention Attention AveragePooling1D AveragePooling2D AveragePooling3D BatchNormalization
Bidirectional Concatenate Conv1DTranspose Conv2DTranspose Conv3DTranspose DepthwiseConv1D DepthwiseConv2D
EinsumDense GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D
GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization InputLayer LayerNormalization
MaxPooling1D MaxPooling2D MaxPooling3D MultiHeadAttention SeparableConv1D SeparableConv2D SpatialDropout1D
SpatialDropout2D SpatialDropout3D TimeDistributed UnitNormalization UpSampling1D UpSampling2D UpSampling3D
ZeroPadding1D ZeroPadding2D ZeroPadding3D Activation Normalization Rescaling"""
_KINDS = tuple(_NAMES.split())
# How many layers back a cut name in "Connected to" is looked for.
_REACH = 60
# Longer cells are damage: a row that goes on over hundreds of lines.
_MAX_CELL = 1000

Cells = Dict[str, str]


def parse(lines: Sequence[str], table: Table) -> ModelSummary:
    """Read the rows of one table."""
    shapes = ShapeReader()
    rows: List[Row] = []
    for line, cells in _collect(lines, table):
        row = _read_row(cells, line, shapes)
        rows.append(row if row else unknown_row(" ".join(" ".join(cells.values()).split()), line))
    if not table.closed:
        while rows and rows[-1].unknown:
            rows.pop()
    _nest(rows)
    _connect(rows)
    has_params = "Para" in table.header or not table.header
    return finish(
        "keras",
        rows,
        read_totals(lines[table.stop : table.end]),
        name=_model_name(lines, table),
        input_shapes=[shape for row in rows if row.kind == "InputLayer" for shape in row.outputs],
        closed=table.closed,
        notes=() if has_params else ['the column "Param #" is cut off: parameters are known in total only'],
        check_sum=has_params,
        deeper="model.summary(expand_nested=True)",
    )


def _model_name(lines: Sequence[str], table: Table) -> str:
    for line in reversed(lines[max(0, table.first - 6) : table.first]):
        match = _MODEL.search(line)
        if match:
            return match[1]
    return ""


def _collect(lines: Sequence[str], table: Table) -> List[Tuple[int, Cells]]:
    """Put the lines of one row together; a row begins where its last sure column has something in it."""
    titles = [(_FULL_TITLES[match[0][:4]], match.start()) for match in _TITLE.finditer(table.header)]
    # Boxes can be read without their titles, columns cannot.
    names = [title for title, _ in titles] or list(_FULL_TITLES.values())
    starts = [start for _, start in titles]
    key = next((names.index(title) for title in ("Param #", "Output Shape") if title in names), 0)
    found: List[Tuple[int, List[str]]] = []
    for number in range(table.first, table.stop):
        text = lines[number]
        if text.startswith(_BOX_RULES) or not text.strip(_RULES):
            continue
        boxed = "│" in text or "┃" in text
        if not boxed and not starts:
            continue
        parts = _boxed_cells(text) if boxed else _plain_cells(text, starts)
        if not found or (len(parts) > key and parts[key]):
            found.append((number + 1, parts))
            continue
        row = found[-1][1]
        for position, part in enumerate(parts[: len(row)]):
            if part:
                row[position] += part.strip(" │")
    return [(line, dict(zip(names, parts))) for line, parts in found]


def _boxed_cells(text: str) -> List[str]:
    first, *others = text.replace("┃", "│").strip().strip("│").split("│")
    # Keep how far the first cell is indented: it shows the nesting.
    return [first[1:].rstrip(), *(part.strip() for part in others)]


def _plain_cells(text: str, starts: Sequence[int]) -> List[str]:
    """Cut at the titles' positions; an old Keras may push the name up to the next column."""
    nested = len(text) - len(text.lstrip("|"))
    body = text.rstrip().rstrip("|") if nested else text
    ends = [*starts[1:], len(body)]
    parts = [body[start:end].strip() for start, end in zip(starts, ends)]
    if nested:
        parts[0] = "│" * nested + body[nested : ends[0]].strip()
    return parts


def _read_row(cells: Cells, line: int, shapes: ShapeReader) -> Optional[Row]:
    text = cells.get("Layer (type)", "")[:_MAX_CELL]
    match = _NAME.search(text)
    params = cells.get("Param #")
    count = 0 if params is None else parse_count(params) or parse_count(params.partition(" ")[0])
    shape = cells.get("Output Shape", "")
    outputs = () if shape in _NO_SHAPE else shapes.read(shape)
    if match is None or count is None or outputs is None:
        return None
    name, kind, end = match.groups()
    row = Row(kind if end == ")" else _full_kind(kind), line)
    row.name = name
    row.outputs = outputs
    row.params = count
    if text[0] in "│ ":
        row.depth = _depth(text)
    connected = cells.get("Connected to")
    if connected and connected not in ("-", "[]"):
        row.attributes = (("connected_to", connected),)
    if cells.get("Trainable") == "N":
        row.trainable = False
    if params is None:
        row.params_known = False
    elif "unbuilt" in params or "unused" in params:
        row.params_known = row.called = False
    return row


def _depth(text: str) -> int:
    bars = len(text) - len(text.lstrip("│"))
    if bars:
        return bars
    # Keras 3 indents by three for each level.
    return text.index("└") // 3 if "└" in text[:100] else 0


def _full_kind(kind: str) -> str:
    """Complete a class name that Keras has cut."""
    fitting = [known for known in _KINDS if known.startswith(kind)]
    return fitting[0] if len(fitting) == 1 else kind


def _nest(rows: List[Row]) -> None:
    """A nested model's row counts its layers' parameters too; leave it those it has alone."""
    inside: Dict[int, int] = {}
    for row in reversed(rows):
        deeper = [depth for depth in inside if depth > row.depth]
        stated = row.params
        if deeper and not row.unknown:
            row.leaf = False
            row.params = max(0, stated - sum(inside[depth] for depth in deeper))
        elif row.kind in _MODELS:
            row.hidden = True
        for depth in deeper:
            del inside[depth]
        inside[row.depth] = inside.get(row.depth, 0) + stated


def _connect(rows: List[Row]) -> None:
    """Find each layer's inputs by the names it is connected to; without them, the layer before."""
    outputs: Dict[str, Shape] = {}
    before: Tuple[Shape, ...] = ()
    for row in rows:
        if row.attributes and row.attributes[0][0] == "connected_to":
            row.inputs = _inputs(row.attributes[0][1], outputs)
        elif row.kind != "InputLayer" and not row.unknown:
            row.inputs = before
        if row.inputs:
            row.derived = _DERIVED
        if row.outputs:
            before = row.outputs[:1]
            outputs[row.name] = before[0]


def _inputs(connected: str, outputs: Dict[str, Shape]) -> Tuple[Shape, ...]:
    """Read "['conv2d[0][0]', 'add[0][0]']" or "conv2d[0][0], add[0][0]"."""
    found = []
    for part in connected[:_MAX_CELL].split(","):
        name = part.strip(" '[").partition("[")[0]
        shape = outputs.get(name) or _lookup(outputs, name)
        if shape:
            found.append(shape)
    return tuple(found)


def _lookup(outputs: Dict[str, Shape], name: str) -> Optional[Shape]:
    """Find the shape of the only layer whose name begins like a cut one."""
    if not name.endswith("…"):
        return None
    # Only the latest layers, newest first: a cut name is looked up without a table of all its beginnings.
    recent = islice(reversed(outputs.items()), _REACH)
    fitting = {shape for known, shape in recent if known.startswith(name[:-1])}
    return fitting.pop() if len(fitting) == 1 else None
