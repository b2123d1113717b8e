"""The file of known models: which summaries are which model's, and each model's traced steps.

    gpumem-known-models/1

    number of keys, number of models (4 bytes each, little-endian)
    keys in order: key (8 bytes), model (2 bytes), size (2 bytes: its place among the model's sizes)
    where each model's part begins (4 bytes each), and the end of the last
    parts, each compressed alone (LZMA): lines of JSON, the first about the model, then one a trace

A lookup reads the keys and one part. The package ships the models that are used most; a file with more of
them may lie in one of FOLDERS.
"""

from __future__ import annotations

import json
import os
import struct
from bisect import bisect_left
from functools import lru_cache
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from slurm_gpumem.data import FOLDERS, data_file
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.leaf_classes import is_leaf_kind
from slurm_gpumem.summaries.parsers.own import trace_content, trace_of
from slurm_gpumem.summaries.trace_types import CATEGORIES, Kernel, Site, Trace, TracedJob
from slurm_gpumem.summaries.types import UNKNOWN_KIND, Layer, ModelSummary

if TYPE_CHECKING:
    from slurm_gpumem.summaries.trace_types import Trace


# Keys of a model: equal for all summaries of it by one way of printing, different for any other model.
#
# A key hashes every row that the summary shows, in order: class, depth, parameters and the size of a
# sample's output, or, where a summary has no shapes, class, depth and arguments. One changed layer, width
# or size changes it.

KEY_BYTES = 8
FEWEST_ROWS = 8
"""A summary with fewer rows is no sign of a certain model."""
SHALLOWEST = 2
"""Summaries cut at a smaller depth show too little."""


def key_of(summary: ModelSummary) -> bytes:
    """The key of a summary; empty where it does not show enough."""
    layers = summary.layers
    if len(layers) < FEWEST_ROWS or not summary.complete or any(one.kind == UNKNOWN_KIND for one in layers):
        return b""
    if not summary.shows.nesting:
        return _key("flat", _flat(summary))
    deepest = max(layer.depth for layer in layers)
    if deepest < SHALLOWEST:
        return b""
    if summary.has_shapes:
        return _key("shapes", _shaped(summary, deepest))
    if any(layer.attributes for layer in layers):
        return _key("printed", _printed(layers))
    return _key("tree", _tree(layers, deepest))


def keys_at_depths(summary: ModelSummary) -> List[bytes]:
    """The keys that the same text has when it is cut at each smaller depth, and its own."""
    rows = _shaped if summary.has_shapes else lambda of, deepest: _tree(of.layers, deepest)
    name = "shapes" if summary.has_shapes else "tree"
    deepest = max(layer.depth for layer in summary.layers)
    found = [_key(name, rows(summary, depth)) for depth in range(SHALLOWEST, deepest + 1)]
    return [key for key in found if key]


def _key(name: str, rows: Iterable[Tuple[object, ...]]) -> bytes:
    from slurm_gpumem.digest import blake2b  # here, because most submissions need none

    digest, count = blake2b(name.encode(), digest_size=KEY_BYTES), 0
    for row in rows:
        digest.update("|".join(map(str, row)).encode("utf-8", "backslashreplace") + b"\n")
        count += 1
    return digest.digest() if count >= FEWEST_ROWS else b""


def _shaped(summary: ModelSummary, deepest: int) -> Iterator[Tuple[object, ...]]:
    """Rows down to a depth; what lies below it counts as parameters of the last row above."""
    sums = _params_below(summary.layers)
    for layer, params in zip(summary.layers, sums):
        if layer.depth <= deepest:
            # Of containers tools show different ones of several outputs.
            size = _sample(summary, layer) if is_leaf_kind(layer.kind) else ""
            yield layer.depth, layer.kind, params, int(layer.repeated), size


def _flat(summary: ModelSummary) -> Iterator[Tuple[object, ...]]:
    """Layers that compute, in the order of their calls."""
    for layer in summary.layers:
        if is_leaf_kind(layer.kind):
            yield layer.kind, layer.params, _sample(summary, layer)


def _printed(layers: Tuple[Layer, ...]) -> Iterator[Tuple[object, ...]]:
    for layer in layers:
        yield layer.depth, layer.kind, layer.attributes


def _tree(layers: Tuple[Layer, ...], deepest: int) -> Iterator[Tuple[object, ...]]:
    """Modules and their parameters in the order of definition, as torchinfo shows them without an input."""
    for layer, params in zip(layers, _params_below(layers)):
        if layer.depth <= deepest:
            yield layer.depth, layer.kind, params


def _params_below(layers: Tuple[Layer, ...]) -> List[int]:
    """Each row's own parameters and those of all rows below it."""
    sums = [layer.params for layer in layers]
    parents: List[int] = []
    for at, layer in enumerate(layers):
        while parents and layers[parents[-1]].depth >= layer.depth:
            parents.pop()
        for parent in parents:
            sums[parent] += layer.params
        parents.append(at)
    return sums


def _sample(summary: ModelSummary, layer: Layer) -> str:
    return ",".join(str(summary.elements(shape, 1)) for shape in layer.outputs[:1])


FORMAT = b"gpumem-known-models/1\n"
FILE = "known-models.bin"
MORE = "known-models-more.bin"
"""The optional file with the models that are used less."""
_ROW = struct.Struct(f"<{KEY_BYTES}sHH")
_LARGEST = 64 << 20
"""Bytes of one model's part, unpacked, at most."""


class KnownModel(NamedTuple):
    """A model whose traced steps are stored, at the input size that a summary shows or that is usual."""

    key: bytes
    """Of the summary that was recognized."""
    name: str
    """As people call it: "timm resnet50"."""
    input: str
    """"224 x 224 pixels"."""
    alike: Tuple[str, ...]
    """Other models and sizes whose text is the same."""
    size: int
    about: Mapping[str, Any]
    lines: Mapping[str, str]
    """JSON of each trace by size and precision."""

    @property
    def trained(self) -> int:
        """Parameters that its traces train."""
        return sum(self.about["params"])

    def trace(self, job: TrainingJob) -> Optional[Trace]:
        """Its steps as the job trains it; None where such a training was not traced."""

        line = self.lines.get(f"{self.size} {STORED_AS[job.precision]}")
        if line is None:
            return None
        try:
            return decode(json.loads(line), self.about["params"], self.about["batch"], job)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ConfigError(f"the stored trace of {self.name} is damaged: {error}") from None

    def with_input(self, sample: Sequence[int]) -> Optional[KnownModel]:
        """The model at the size of a sample (3, 224, 224 or 128); None where that size is not stored."""
        sizes = set(sample[1:] if len(sample) > 1 else sample)
        for pixels, name in self.about["sizes"]:
            if sizes == {pixels}:
                return self._replace(size=pixels, input=name)
        return None


Traces = Mapping[str, Any]
"""Encoded traces by size and precision: "224 amp-bf16"."""


def pack(parts: Sequence[bytes], keys: Mapping[bytes, Tuple[int, int]]) -> bytes:
    """The file: each model's part (`packed`), and the model and size of each key."""
    table = b"".join(_ROW.pack(key, *keys[key]) for key in sorted(keys))
    at = len(FORMAT) + 8 + len(table) + 4 * (len(parts) + 1)
    offsets = [at + sum(map(len, parts[:number])) for number in range(len(parts) + 1)]
    head = FORMAT + struct.pack("<II", len(keys), len(parts)) + table
    return head + struct.pack(f"<{len(offsets)}I", *offsets) + b"".join(parts)


def packed(about: Mapping[str, Any], traces: Traces) -> bytes:
    """One model's part of the file."""
    import lzma

    lines = [json.dumps(about, separators=(",", ":"))]
    lines += [f"{name}\t{json.dumps(content, separators=(',', ':'))}" for name, content in traces.items()]
    return lzma.compress("\n".join(lines).encode(), lzma.FORMAT_RAW, filters=_filters())


def find(key: bytes) -> Optional[KnownModel]:
    """The model whose text has this key; None where it is not known."""
    if not key:
        return None
    for path in _paths():
        found = _find_in(path, key)
        if found is not None:
            return found
    return None


def _paths() -> Iterator[str]:
    yield data_file("models", FILE)
    for folder in FOLDERS:
        path = os.path.join(os.path.expanduser(folder), MORE)
        if os.path.exists(path):
            yield path


@lru_cache(maxsize=4)
def _find_in(path: str, key: bytes) -> Optional[KnownModel]:
    try:
        with open(path, "rb") as file:
            if file.read(len(FORMAT)) != FORMAT:
                raise ValueError("it does not begin as such a file does")
            count, _ = struct.unpack("<II", file.read(8))
            rows = _Rows(file.read(count * _ROW.size))
            at = bisect_left(rows, key)
            if at == count or rows[at] != key:
                return None
            _, model, size = _ROW.unpack_from(rows.data, at * _ROW.size)
            file.seek(len(FORMAT) + 8 + count * _ROW.size + 4 * model)
            begin, end = struct.unpack("<II", file.read(8))
            file.seek(begin)
            return _model(_unpacked(file.read(end - begin)), size, key)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, IndexError, TypeError, struct.error, OSError) as error:
        raise ConfigError(f"{path}: cannot be used: {error}; install the package again") from None


def _unpacked(data: bytes) -> str:
    import lzma  # here, because most summaries are of other models

    try:
        reader = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_filters())
        return reader.decompress(data, _LARGEST).decode()
    except lzma.LZMAError as error:
        raise ValueError(str(error)) from None


def _filters() -> List[Dict[str, Any]]:
    import lzma

    return [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 20, "lc": 4, "lp": 0, "pb": 0}]


def _model(text: str, size: int, key: bytes) -> KnownModel:
    first, *lines = text.split("\n")
    about = json.loads(first)
    pixels, name = about["sizes"][size]
    alike = tuple(about.get("alike", {}).get(key.hex(), ()))
    named = dict(line.split("\t", 1) for line in lines)
    return KnownModel(key, about["name"], name, alike, pixels, about, named)


class _Rows(Sequence[bytes]):
    """The keys of a table, without making a list of all of them."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data) // _ROW.size

    def __getitem__(self, at: Any) -> Any:
        return self.data[at * _ROW.size : at * _ROW.size + KEY_BYTES]


# Traces of known models in little space, and as the training that somebody asks about.
#
# Millions of allocations fit into a few megabytes because networks repeat themselves. To let a compressor
# see that, a trace is written without the names of layers, a release names its block by its place among the
# blocks that are alive (the newest is -1), and the optimizer's part is left out: it is the same for all
# models, one state after the other for each parameter, then lists of temporaries (`estimators/types.py`).

_OPTIMIZER = "optimizer"
_LEFT_OUT = ("job", "modules", "events", "sites", "phases")
HALF = {"amp-fp16": "fp16", "amp-bf16": "bf16"}
STORED_AS = {"fp32": "fp32", "tf32": "fp32", "amp-fp16": "amp-bf16", "amp-bf16": "amp-bf16", "bf16": "bf16"}
"""Which stored trace answers for a precision: the two kinds of AMP allocate the same."""


def encode(trace: Trace) -> Dict[str, Any]:
    """A trace as few different numbers."""
    sites, numbers = _merged(trace)
    content = trace_content(trace._replace(sites=tuple(sites), events=()))
    alive: List[int] = []
    events: List[int] = []
    phases: List[Tuple[int, str, int]] = []
    starts = {phase.event: phase for phase in trace.phases}
    block, skipped, now = 0, set(), trace.phases[0]
    for index, value in enumerate(trace.events):
        if index in starts:
            now = starts[index]
            phases.append((len(events), now.name, now.step))
        if value >= 0:
            if now.name == _OPTIMIZER:
                skipped.add(block)
            else:
                events.append(numbers[value])
                alive.append(block)
            block += 1
        elif block + value in skipped:
            skipped.remove(block + value)
        else:
            # Most that is released is young.
            place = next(back for back in range(1, len(alive) + 1) if alive[-back] == block + value)
            events.append(-place)
            del alive[-place]
    found = {name: value for name, value in content.items() if name not in _LEFT_OUT}
    found["sites"] = [[row[0], row[1], *row[3:]] for row in content["sites"]]
    return {**found, "phases": phases, "events": events}


def parameters(trace: Trace) -> List[int]:
    """Elements of each trainable parameter in the optimizer's order, from a trace with Adam's two states."""
    width = 2 if trace.job.precision == "bf16" else 4
    begins = [phase.event for phase in trace.phases] + [len(trace.events)]
    at = next(at for at, phase in enumerate(trace.phases) if phase.name == _OPTIMIZER)
    sites = [trace.sites[value] for value in trace.events[begins[at] : begins[at + 1]] if value >= 0]
    states = [site.bytes[0] for site in sites if site.operator.endswith("zeros_like")]
    pairs = list(zip(states[::2], states[1::2]))
    if len(states) % 2 or any(one != two for one, two in pairs):
        raise ValueError("the optimizer's states are not two for each parameter")
    return [one // width for one, _ in pairs]


def decode(content: Mapping[str, Any], params: Sequence[int], batch: int, job: TrainingJob) -> Trace:
    """The trace for a job's optimizer and precision; ValueError and the like where something is damaged."""
    rule, width = job.optimizer_rule, job.weight_bytes
    traced = TracedJob(batch, optimizer=job.optimizer, precision=job.precision)
    sites = [[row[0], row[1], 0, *row[2:]] for row in content["sites"]]
    of_size: Dict[int, int] = {}
    for count in params:
        if count not in of_size:
            of_size[count] = len(sites)
            sites.append([[count * width], len(content["operators"]), 0, CATEGORIES.index(_OPTIMIZER)])
    updates = [of_size[count] for count in params]
    starts: Dict[int, List[Tuple[str, int]]] = {}
    for event, name, step in content["phases"]:
        starts.setdefault(event, []).append((name, step))
    events: List[int] = []
    phases: List[Tuple[int, str, int]] = []
    alive: List[int] = []
    block, first = 0, True
    for index, value in enumerate([*content["events"], None]):
        for name, step in starts.get(index, ()):
            phases.append((len(events), name, step))
            if name == _OPTIMIZER:
                states = [site for site in updates for _ in range(rule.states)] if first else []
                passing = updates * rule.temporaries
                # A list releases its members from the last to the first.
                events += [*states, *passing, *range(-1, -len(passing) - 1, -1)]
                block += len(states) + len(passing)
                first = False
        if value is None:
            break
        if value >= 0:
            alive.append(block)
            events.append(value)
            block += 1
        else:
            events.append(alive.pop(value) - block)
    document = {
        **content,
        "job": {"batch": batch},
        "operators": [*content["operators"], f"optimizer::{job.optimizer}"],
        "modules": [""],
        "sites": sites,
        "events": events,
        "phases": [list(phase) for at, phase in enumerate(phases) if not _is_empty(phases, at, len(events))],
    }
    trace = trace_of(document)._replace(job=traced)
    return _half(trace, HALF[job.precision]) if job.amp else trace


def _is_empty(phases: Sequence[Tuple[int, str, int]], at: int, events: int) -> bool:
    return phases[at][0] == (phases[at + 1][0] if at + 1 < len(phases) else events)


def _merged(trace: Trace) -> Tuple[List[Site], List[int]]:
    """Sites without their layers, each once, and their numbers for the trace's; the optimizer's too."""
    places: Dict[Site, int] = {}
    numbers = []
    for site in trace.sites:
        plain = site._replace(module="")
        numbers.append(places.setdefault(plain, len(places)))
    return list(places), numbers


def _half(trace: Trace, dtype: str) -> Trace:
    """The same step with the other type of half precision."""

    def changed(site: Site) -> Site:
        conv = site.convolution
        if conv is None or conv.dtype not in HALF.values() or conv.dtype == dtype:
            return site
        return site._replace(convolution=conv._replace(dtype=dtype))

    def moved(kernel: Kernel) -> Kernel:
        return kernel._replace(dtype=dtype) if kernel.dtype in HALF.values() else kernel

    return trace._replace(
        sites=tuple(changed(site) for site in trace.sites),
        kernels=tuple(moved(kernel) for kernel in trace.kernels),
    )
