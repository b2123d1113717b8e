"""Count a layer's parameters from what print(model) shows: "Conv2d(3, 64, kernel_size=(7, 7), ...)"."""

from __future__ import annotations

from math import prod
from typing import Dict, List, Optional, Tuple

from slurm_gpumem.summaries.parsers.cells import ShapeReader, parse_count
from slurm_gpumem.summaries.types import Shape

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
