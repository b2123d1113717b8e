"""How much of a model's memory depends on custom forwards: code of somebody's classes, in no summary.

What a class of torch.nn, torchvision, timm or transformers does between its layers is known: such models were
measured. Of a class that somebody wrote, a summary shows the layers but not what its `forward` does with
their outputs (attention by einsum, a scan, concatenations, distances to a codebook).

models/known-classes.txt lists the known classes and what stands below each of them; a class counts as known
if its name is there and most of what stands below it fits, so that an own class called `Block` does not pass
for timm's. It is text in order, searched for the few names that a model has, because reading it all would
take longer than an estimate: after a first line with its format, a line is

    NAME MARKS NAME NAME ...

with the class, "t" if it is one of torch.nn, "m" if it stands in a text of a measured model, else "-", and
the classes that may stand below it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import (
    AbstractSet,
    Dict,
    FrozenSet,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from slurm_gpumem.data import data_file
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators.structural.forwards.registry import misfits
from slurm_gpumem.estimators.structural.layers.class_names import family_of, is_attention
from slurm_gpumem.estimators.structural.tree import build_tree
from slurm_gpumem.estimators.types import CustomForward
from slurm_gpumem.summaries.types import Layer, ModelSummary

FILE = "known-classes.txt"
FORMAT = b"gpumem-known-classes/1\n"
LISTS = frozenset(["ModuleList", "ModuleDict", "ParameterList", "ParameterDict"])
"""They have no forward: who owns them calls what is in them."""
_SEQUENCES = frozenset([*LISTS, "Sequential"])
_FREE = frozenset(
    ["relu", "hard", "composed_act", "softmax", "output_act", "input_act", "dropout", "drop_path", "identity"]
)
"""Families of layers that a class is often given by its caller: they say nothing about it."""
_FITS = 0.6
"""Share of what stands below a class that must fit: libraries give some classes a part of another's."""
NO_NAME = "model"
"""torchsummary does not name the model's own class."""


_ALONE = frozenset(
    [
        *("BasicBlock", "Bottleneck", "Fire", "InvertedResidual", "ResBottleneckBlock"),
        *("SepInceptionBlock3D", "_InvertedResidual"),
    ]
)
"""Classes that are the only ones besides torch.nn's in a text of torchvision's models. Any other model of a
library names several: one general name (ConvBN, ResBlock) is somebody's own."""
_LIBRARY_MODEL = re.compile(r"^([A-Z][a-z]{2,}|\w{4})\w*For[A-Z]\w+$")
"""A model of transformers with a head, and how the names of its classes begin."""
_END = re.compile(r"Adaptive|Head")
"""What models of a library end with, where they have a layer for it."""
_COMPUTED_WEIGHTS = re.compile(r"Parametrized|_WeightNorm|_SpectralNorm|_Orthogonal")


class Entry(NamedTuple):
    """A known class."""

    marks: str
    below: FrozenSet[str]


class KnownClasses:
    """The file, each name looked up when it is first asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._found: Dict[str, Optional[Entry]] = {}

    def __getitem__(self, kind: str) -> Optional[Entry]:
        if kind not in self._found:
            line = self._line(kind.encode("utf-8", "backslashreplace") + b" ").split(" ")
            self._found[kind] = Entry(line[1], frozenset(line[2:])) if len(line) > 1 else None
        return self._found[kind]

    def _line(self, start: bytes) -> str:
        """The line that begins so; empty where none does."""
        data, low, high = self._data, len(FORMAT), len(self._data)
        while low < high:
            middle = (low + high) // 2
            begin = data.rfind(b"\n", low, middle) + 1 or low
            end = data.find(b"\n", middle)
            end = high if end < 0 else end
            line = data[begin:end]
            if line.startswith(start):
                return line.decode("utf-8", "replace")
            low, high = (end + 1, high) if line < start else (low, begin)
        return ""

    def owners(self, kind: str) -> Iterator[Entry]:
        """The classes of measured models that have this one below them."""
        name = re.escape(kind.encode())
        for line in re.finditer(rb"(?m)^\S+ m .*\b" + name + rb"\b.*$", self._data):
            words = line[0].decode("utf-8", "replace").split(" ")
            if kind in words[2:]:
                yield Entry(words[1], frozenset(words[2:]))

    def fits(self, kind: str, inside: FrozenSet[str]) -> bool:
        """Whether a class of this name over these classes is the one that is known."""
        if kind in _SEQUENCES:
            return True
        known = self[kind]
        if known is None:
            return False
        own = [name for name in inside if not _is_free(name)]
        return not own or sum(name in known.below for name in own) >= _FITS * len(own)


def _is_free(kind: str) -> bool:
    family = family_of(kind)
    return bool(family) and (family in _FREE or "norm" in family)


@lru_cache(maxsize=1)
def known_classes() -> KnownClasses:
    """The package's own list."""
    path = data_file("models", FILE)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if not data.startswith(FORMAT):
        raise ConfigError(f"{path}: is not a list of classes of format {FORMAT.decode().strip()}")
    return KnownClasses(data)


@lru_cache(maxsize=8)
def custom_forward(summary: ModelSummary) -> CustomForward:
    """How much of this text's model has a custom forward, and in which classes."""
    known = known_classes()
    if not summary.shows.nesting:
        return _without_nesting(summary, known)
    total = 0
    weights: Dict[str, int] = {}
    owners: List[Tuple[int, str]] = []
    rows = list(inner_kinds(summary))
    family = _family(rows, known)
    for layer, inside in rows:
        while owners and owners[-1][0] >= layer.depth:
            owners.pop()
        # Without shapes (print(model)) each row counts the same.
        size = _size(layer) if summary.has_shapes else 1
        if layer.leaf:
            total += size
        owner = owners[-1][1] if owners else ""
        own = "" if known.fits(layer.kind, inside) else layer.kind
        if own and family and (own.startswith(family) or known[own] is not None):
            own = ""
        if own:
            weights.setdefault(own, 0)
        if layer.leaf:
            owner = owner or own
        if owner:
            weights[owner] += size
        owners.append((layer.depth, owner if layer.kind in LISTS else own))
    return _shared(weights, total)


def _family(rows: Sequence[Tuple[Layer, FrozenSet[str]]], known: KnownClasses) -> str:
    """How the names of the classes of a model of transformers begin; "" where the model is none of its.

    Its own class decides: whoever calls `AriaTextForCausalLM` gets the library's code below it. The list may
    not show what stands there, where a class is inherited or chosen by the configuration.
    """
    top, inside = rows[0]
    word = _LIBRARY_MODEL.match(top.kind)
    if word is None or known[top.kind] is None:
        return ""
    names = [kind for kind in inside if not family_of(kind) and kind not in _SEQUENCES]
    whole = all(known[kind] is not None for kind in names)
    return word[1] if whole and any(kind.startswith(word[1]) for kind in names) else ""


def _without_nesting(summary: ModelSummary, known: KnownClasses) -> CustomForward:
    """Without nesting a name alone must do, and the model's own class stands nowhere."""
    kinds = {layer.kind for layer in summary.layers} - _SEQUENCES
    found = {kind: known[kind] for kind in kinds}
    written = sorted(kind for kind, entry in found.items() if entry is None)
    if not written:
        written = _strange_owners(summary, known) or sorted(misfits(build_tree(summary)))
    if written:
        return CustomForward(1.0, tuple(written))
    # Weights that are computed from others are torch's own, in any model.
    measured = {
        kind
        for kind, entry in found.items()
        if entry is not None and entry.marks == "m" and not _COMPUTED_WEIGHTS.match(kind)
    }
    library = len(measured) > 1 or any(_in_a_library_model(kind, kinds, known) for kind in measured & _ALONE)
    # Even then the model's own forward may be somebody's, as in a nested text of a model around a library's.
    return CustomForward(0.0 if library else 1.0, (NO_NAME,))


def _in_a_library_model(block: str, kinds: AbstractSet[str], known: KnownClasses) -> bool:
    """Whether a library's model has this class and all that stands beside it.

    A model that ends without the head or pooling layer of the library's does that in a forward of its own.
    """
    entry = known[block]
    inside = entry.below if entry else frozenset()
    beside = {kind for kind in kinds if kind not in inside and not _is_free(kind)} | {block}
    ends = any(_END.search(kind) for kind in beside)
    return any(
        beside <= owner.below and (ends or not any(_END.search(kind) for kind in owner.below))
        for owner in known.owners(block)
    )


def _strange_owners(summary: ModelSummary, known: KnownClasses) -> List[str]:
    """Classes whose last layer is none that the known class of this name has.

    A container's row comes right after its last layer's. Only layers with a name of their own say something:
    convolutions may stand in a sequence that has no row.
    """
    found = set()
    for at, layer in enumerate(summary.layers):
        entry = known[layer.kind]
        if layer.params or entry is None or not entry.below or family_of(layer.kind):
            continue
        last = next((row for row in reversed(summary.layers[:at]) if not _is_free(row.kind)), None)
        if last is None or last.kind == layer.kind or last.kind in entry.below or family_of(last.kind):
            continue
        if not is_attention(layer.kind):  # it may use its layers' weights without calling them
            found.add(layer.kind)
    return sorted(found)


def _shared(weights: Mapping[str, int], total: int) -> CustomForward:
    found = sum(weights.values())
    if not weights:
        return CustomForward(0.0, ())
    ordered = tuple(sorted(weights, key=lambda name: -weights[name]))
    return CustomForward(min(1.0, found / total) if total else 1.0, ordered)


def _size(layer: Layer) -> int:
    return sum(prod(size for size in shape if size > 0) for shape in layer.outputs if shape)


def inner_kinds(summary: ModelSummary) -> Iterator[Tuple[Layer, FrozenSet[str]]]:
    """Each layer with the classes directly below it, lists and sequences looked through."""
    rows = summary.layers
    inside: List[List[str]] = [[] for _ in rows]
    stack: List[int] = []
    for at, layer in enumerate(rows):
        while stack and rows[stack[-1]].depth >= layer.depth:
            stack.pop()
        if layer.kind not in _SEQUENCES:
            for above in reversed(stack):
                inside[above].append(layer.kind)
                if rows[above].kind not in _SEQUENCES:
                    break
        stack.append(at)
    for layer, kinds in zip(rows, inside):
        yield layer, frozenset(kinds)
