"""What print(model) shows, and the same with ", 9,408 params" behind each layer (modelsummary's hierarchy).

"(conv1): Conv2d(3, 64, kernel_size=(7, 7), stride=(2, 2), padding=(3, 3), bias=False)": no shapes, but
enough to count the parameters of every usual layer.
"""

from __future__ import annotations

import re
from copy import copy
from math import prod
from typing import Any, Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.summaries.leaf_classes import has_no_params
from slurm_gpumem.summaries.parsers.finish import Totals, finish
from slurm_gpumem.summaries.parsers.rows import Row, ShapeReader, parse_count, unknown_row
from slurm_gpumem.summaries.parsers.text import prefix_pattern
from slurm_gpumem.summaries.types import ModelSummary, Shape

# Count a layer's parameters from what print(model) shows: "Conv2d(3, 64, kernel_size=(7, 7), ...)".


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class Arguments:
    """The arguments of one printed layer: positional ones in order, others by name."""

    def __init__(self, text: str) -> None:
        self.named: Dict[str, str] = {}
        self.positional: List[str] = []
        for part in _split(text):
            name, equals, value = part.partition("=")
            if equals and name.isidentifier():
                self.named[name] = value.strip()
            elif part:
                self.positional.append(part)

    def number(self, name: str, position: Optional[int] = None) -> Optional[int]:
        """Return a whole number by name or position."""
        text = self.named.get(name)
        if text is None and position is not None and position < len(self.positional):
            text = self.positional[position]
        return None if text is None else parse_count(text)

    def sizes(self, name: str, position: Optional[int] = None) -> Optional[Shape]:
        """Return "(7, 7)" or "7" as a tuple."""
        text = self.named.get(name)
        if text is None and position is not None and position < len(self.positional):
            text = self.positional[position]
        if text is None:
            return None
        single = parse_count(text)
        if single is not None:
            return (single,)
        shapes = ShapeReader().read(text)
        return shapes[0] if shapes else None

    def flag(self, name: str, default: bool = True) -> bool:
        """Return "True" or "False"; other values count as true (a bias that is a tensor)."""
        text = self.named.get(name)
        return default if text is None else text not in ("False", "None")

    @property
    def pairs(self) -> Tuple[Tuple[str, str], ...]:
        """All arguments for `Layer.attributes`; positional ones by their position."""
        return (
            *((str(position), value) for position, value in enumerate(self.positional)),
            *self.named.items(),
        )


def _split(text: str) -> List[str]:
    """Split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for position, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth <= 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return parts


def count_params(kind: str, args: Arguments) -> Optional[int]:
    """Return the parameters of one layer; None when its arguments do not tell."""
    if "in_features" in args.named and "out_features" in args.named:
        return _linear(args)
    if kind in ("Bilinear",):
        return _bilinear(args)
    if kind == "Conv1D" and "nf" in args.named and "nx" in args.named:
        nf, nx = args.number("nf"), args.number("nx")
        return None if nf is None or nx is None else nf * nx + nf
    if "Conv" in kind and "kernel_size" in args.named:
        return _convolution(args)
    if kind.endswith(("Embedding", "EmbeddingBag")):
        rows, columns = args.number("num_embeddings", 0), args.number("embedding_dim", 1)
        return None if rows is None or columns is None else rows * columns
    for name, gates in _GATES.items():
        if kind in (name, f"{name}Cell"):
            return _recurrent(args, gates)
    if "Norm" in kind:
        return _normalization(kind, args)
    if kind == "PReLU":
        return args.number("num_parameters")
    return None


def _linear(args: Arguments) -> Optional[int]:
    inputs, outputs = args.number("in_features"), args.number("out_features")
    if inputs is None or outputs is None:
        return None
    return inputs * outputs + (outputs if args.flag("bias") else 0)


def _bilinear(args: Arguments) -> Optional[int]:
    sizes = [args.number(name) for name in ("in1_features", "in2_features", "out_features")]
    if None in sizes:
        return None
    first, second, outputs = (size or 0 for size in sizes)
    return first * second * outputs + (outputs if args.flag("bias") else 0)


def _convolution(args: Arguments) -> Optional[int]:
    inputs, outputs = args.number("in_channels", 0), args.number("out_channels", 1)
    kernel, groups = args.sizes("kernel_size"), args.number("groups") or 1
    if inputs is None or outputs is None or kernel is None or min(kernel) < 1:
        return None
    return inputs * outputs // groups * prod(kernel) + (outputs if args.flag("bias") else 0)


def _recurrent(args: Arguments, gates: int) -> Optional[int]:
    inputs, hidden = args.number("input_size", 0), args.number("hidden_size", 1)
    if inputs is None or hidden is None:
        return None
    layers = args.number("num_layers") or 1
    directions = 2 if args.flag("bidirectional", default=False) else 1
    projected = args.number("proj_size") or 0
    output = projected or hidden
    bias = 2 * gates * hidden if args.flag("bias") else 0
    total = 0
    # The first layer sees the input, the others the output of both directions; all of them alike.
    for width, count in ((inputs, 1), (output * directions, layers - 1)):
        one = gates * hidden * (width + output) + bias + projected * hidden
        total += one * directions * count
    return total


def _normalization(kind: str, args: Arguments) -> Optional[int]:
    if kind.startswith("Group"):
        channels = args.number("num_channels", 1)
        return None if channels is None else 2 * channels if args.flag("affine") else 0
    affine = args.flag("affine", default="Instance" not in kind) and args.flag("elementwise_affine")
    shape = args.sizes("normalized_shape", 0)
    if shape is None or min(shape, default=0) < 0:
        return None
    if not affine:
        return 0
    vectors = 1 if "RMS" in kind or not args.flag("bias") else 2
    return vectors * prod(shape)


_CHILD = re.compile(r"(.{0,200}?) *\([^()]{1,200}\): (?:[0-9]{1,6} x )?[A-Za-z_][\w.]*\(")
_MODULE = re.compile(r"(?:\(([^()]{1,200})\): (?:([0-9]{1,6}) x )?)?([A-Za-z_][\w.]*)\((.*)$")
_ROOT = re.compile(r"[A-Za-z_]\w*\($")
_END = re.compile(r"\)(?:, ([0-9,]+) params)?$")
_PARAMETER = re.compile(r"\([^()]{1,200}\): Parameter containing: \[\S+ of size ([0-9]+(?:x[0-9]+)*)")
_EXTRA = re.compile(r"[(\w'\"]")
# A repeated block ("(0-11): 12 x Block(") is written out; this bounds what a damaged number can do.
MAX_ROWS = 100_000


def find_starts(lines: Sequence[str]) -> List[int]:
    """Return the line where each printed model begins."""
    starts = []
    first_child: Optional[int] = None
    for number, line in enumerate(lines):
        if "): " in line:
            if first_child is None and _CHILD.match(line):
                first_child = number
        elif _ROOT.search(line[-200:].rstrip()):
            following = lines[number + 1 : number + 4]
            if any("): " in later and _CHILD.match(later) for later in following):
                starts.append(number)
        elif line[:1].isalpha() and _is_layer(line):
            starts.append(number)
    if first_child is not None and (not starts or first_child < starts[0]):
        # Its first line is lost.
        starts.insert(0, first_child)
    models = [start for start in starts if not _is_layer(lines[start])]
    return models or starts


def _is_layer(line: str) -> bool:
    """Whether the line is a whole model of one layer: "Linear(in_features=4, out_features=2, bias=True)"."""
    if ")" not in line[-30:]:
        return False
    match, end = _MODULE.match(line), _END.search(line)
    if match is None or end is None or match[1] is not None:
        return False
    return count_params(match[3], Arguments(line[match.start(4) : end.start()])) is not None


def parse(lines: Sequence[str], start: int) -> ModelSummary:
    """Read the model whose first line is `lines[start]`."""
    reader = _Reader()
    reader.read(_without_prefix(lines, start), start)
    rows = reader.rows
    notes = list(reader.notes)
    if reader.stated is None:
        notes.append("parameters outside layers (class tokens, position tables) are not in the summary")
    unclear = sorted({row.kind for row in rows if not row.params_known})
    if unclear:
        shown = ", ".join(unclear[:5]) + (" ..." if len(unclear) > 5 else "")
        notes.append(f"the summary does not show the parameters of {shown}: the weights are counted too low")
    root = rows[0] if rows and rows[0].depth == 0 and not rows[0].unknown else None
    summed = sum(row.params for row in rows)
    return finish(
        "print(model)" if reader.stated is None else "modelsummary hierarchy",
        rows,
        Totals(summed if reader.stated is None else reader.stated),
        name=root.kind if root and not root.leaf else "",
        closed=reader.closed,
        notes=notes,
    )


def _without_prefix(lines: Sequence[str], start: int) -> List[str]:
    """Return the lines from `start` on, stripped, without a logger's prefix."""
    pattern = None
    for line in lines[start : start + 4]:
        child = _CHILD.match(line)
        if child:
            pattern = prefix_pattern(child[1])
            break
    result = []
    for line in lines[start:]:
        match = pattern.match(line) if pattern else None
        result.append(line[match.end() :].strip() if match else line.strip())
    root = _ROOT.search(result[0])
    if root:
        result[0] = root[0]
    return result


class _Block:
    """A module whose bracket is still open."""

    def __init__(self, position: int, count: int) -> None:
        self.position = position
        self.count = count
        self.extra: List[str] = []
        self.stated = 0
        """Sum of what the children state."""


class _Reader:
    def __init__(self) -> None:
        self.rows: List[Row] = []
        self.notes: List[str] = []
        self.closed = False
        self.stated: Optional[int] = None
        self._open: List[_Block] = []
        self._seen: Dict[Tuple[str, str], Tuple[Optional[int], Dict[str, Any]]] = {}

    def read(self, lines: Sequence[str], offset: int) -> None:
        """Read until the root's bracket closes; to the end if the root's line is lost."""
        headless = lines[0].startswith("(")
        for number, text in enumerate(lines, start=offset + 1):
            if text:
                self._read_line(text, number)
                if self.closed and not headless:
                    return
        while self.rows and self.rows[-1].unknown:
            self.rows.pop()
        while self._open:
            self._close(None)
        self.closed = False

    def _read_line(self, text: str, line: int) -> None:
        if text[0] == ")":
            end = _END.match(text)
            if end and self._open:
                self._close(parse_count(end[1]) if end[1] else None)
                return
        match = _MODULE.match(text)
        if match and not match[4]:
            self._add(match, line)
            self._open.append(_Block(len(self.rows) - 1, int(match[2] or 1)))
            return
        end = _END.search(match[4]) if match else None
        if match and end:
            row = self._add(match, line)
            self._finish_row(row, match[4][: end.start()], parse_count(end[1]) if end[1] else None)
            self._repeat(len(self.rows) - 1, int(match[2] or 1))
            self.closed = not self._open
            return
        self._read_other(text, line)

    def _read_other(self, text: str, line: int) -> None:
        block = self._open[-1] if self._open else None
        parameter = _PARAMETER.match(text)
        if parameter and block:
            sizes = [parse_count(size) or 0 for size in parameter[1].split("x")]
            count = 1
            for size in sizes:
                count *= size
            self.rows[block.position].params += count
        elif text.startswith("(") and text.endswith("): None"):
            return
        elif block and block.position == len(self.rows) - 1 and _EXTRA.match(text):
            block.extra.append(text)
        elif block:
            self.rows.append(unknown_row(text, line, len(self._open)))

    def _add(self, match: re.Match[str], line: int) -> Row:
        row = Row(match[3], line, depth=len(self._open))
        parent = self.rows[self._open[-1].position].name if self._open else ""
        row.name = f"{parent}.{match[1]}" if parent and match[1] else match[1] or ""
        self.rows.append(row)
        return row

    def _close(self, stated: Optional[int]) -> None:
        block = self._open.pop()
        row = self.rows[block.position]
        children = self.rows[block.position + 1 :]
        row.leaf = not children
        own = None if stated is None else max(0, stated - block.stated)
        if row.kind == "MultiheadAttention" and own is None:
            # Its input projection is three times the shown output projection, bias and all.
            own = 3 * sum(child.params for child in children if "Linear" in child.kind)
        self._finish_row(row, ", ".join(block.extra), own)
        if stated is not None:
            if self._open:
                self._open[-1].stated += stated * block.count
            else:
                self.stated = stated
        self._repeat(block.position, block.count)
        self.closed = not self._open

    def _finish_row(self, row: Row, text: str, stated: Optional[int]) -> None:
        key = (row.kind, text)
        if key not in self._seen:
            args = Arguments(text)
            fields = {"attributes": args.pairs, "kernel": args.sizes("kernel_size")}
            self._seen[key] = count_params(row.kind, args), fields
        counted, fields = self._seen[key]
        row.__dict__.update(fields)
        if stated is not None:
            counted = stated
        if counted is not None:
            row.params += counted
        elif row.leaf and not row.params and not has_no_params(row.kind):
            row.params_known = False
        if stated is not None and row.leaf and self._open:
            self._open[-1].stated += stated

    def _repeat(self, position: int, count: int) -> None:
        if count < 2:
            return
        block = self.rows[position:]
        if len(self.rows) + len(block) * (count - 1) > MAX_ROWS:
            line = block[0].line
            self.notes.append(f"line {line}: {count} x {block[0].kind} is too much to be true; counted once")
            return
        for _ in range(count - 1):
            self.rows.extend(copy(row) for row in block)
