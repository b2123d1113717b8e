"""Make models/known-models.bin from what `collect` traced, with the keys of the texts that show each model.

    python -m lab.known.pack DIR [--models 400] [--more FILE]

Keys come from the texts in lab/data/ground-truth and from print(model) and the module tree of the traced
model itself. Models are taken in the order of the catalogue (FILES) up to that number; --more writes the
others.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from lab.command import exit_code
from lab.ground_truth import load_ground_truth
from lab.known import BATCH
from lab.networks.entries import Entry, load_catalogue
from lab.places import MODELS, shown
from slurm_gpumem.errors import SummaryError
from slurm_gpumem.estimators.known import store
from slurm_gpumem.estimators.known.store import decode, encode, parameters
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.files import write_atomic
from slurm_gpumem.summaries.parsers.own import trace_of
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.trace_types import Trace
from slurm_gpumem.summaries.types import Layer, ModelSummary

FILES = ("torchvision", "transformers", "timm", "timm_more", "transformers_more", "timm_wide", "check")
TOKENS = ("text", "lm", "seq2seq", "whisper")
PIXELS = ("image", "segment", "video", "hf-image", "hf-segment", "hf-video", "image-text")
WORKERS = 4
SAME = 0.002
"""How far the peak of a trace that was written and read again may be from its own."""
CLOSE = 0.02
"""Models whose texts are the same are one to us if their peaks differ by no more."""


class Prepared(NamedTuple):
    """One model at one size, ready to be packed."""

    model: str
    size: int
    params: List[int]
    traces: Dict[str, Any]
    """Encoded, by precision."""
    peak: int
    """Of the tensors in fp32."""
    printed: List[str]
    """Keys, in hexadecimal, of texts that the traced model gives: print(model), torchinfo without input."""


def prepared(path: Path) -> Prepared:
    """What `collect` wrote, encoded; kept beside its file, because it takes seconds."""
    kept = path.with_name(path.name.replace(".json.xz", ".prepared.json"))
    if not kept.exists():
        made = _prepare(json.loads(lzma.decompress(path.read_bytes())))
        write_atomic(kept, json.dumps(made).encode(), mode=None)
    return Prepared(*json.loads(kept.read_bytes()))


def _prepare(row: Mapping[str, Any]) -> Prepared:
    traces: Dict[str, Any] = {}
    params: List[int] = []
    peak = 0
    for precision, content in row["traces"].items():
        trace = trace_of(content)
        if not trace.scalable or trace.way != "meta":
            continue
        numbers = parameters(trace)
        params = params or numbers
        code = encode(trace)
        again = decode(json.loads(json.dumps(code)), params, BATCH, TrainingJob(BATCH, "adam", precision))
        if numbers != params or abs(_peak(again) / _peak(trace) - 1) > SAME:
            continue
        traces[precision] = code
        peak = _peak(trace) if precision == "fp32" else peak
    keys = [_key(row["print"]), *_tree_keys(row["tree"])]
    return Prepared(row["model"], row["size"], params, traces, peak, [key.hex() for key in keys if key])


def _peak(trace: Trace) -> int:
    """The most bytes of tensors that are alive at once, without workspaces."""
    sizes: Dict[int, int] = {}
    total = most = 0
    for _, block, site in trace.allocations():
        if site is None:
            total -= sizes.pop(block)
        else:
            sizes[block] = site.bytes_at(BATCH)
            total += sizes[block]
            most = max(most, total)
    return most


def _key(text: str) -> bytes:
    try:
        return store.key_of(read_summary(text))
    except SummaryError:
        return b""


def _tree_keys(tree: List[Any]) -> List[bytes]:
    """Keys of torchinfo's table without an input, from depth, class and parameters of every module."""
    own = [count for _, _, count in tree]
    parents: List[int] = []
    for at, (depth, _, count) in enumerate(tree):
        del parents[depth:]
        if parents:
            own[parents[-1]] -= count
        parents.append(at)
    layers = tuple(Layer(kind, params=count, depth=depth) for (depth, kind, _), count in zip(tree, own))
    return store.keys_at_depths(ModelSummary("torchinfo", layers, has_shapes=False))


class Shown(NamedTuple):
    """One text of a model at a size: a key, and whether it shows the size."""

    key: bytes
    shapes: bool


def texts_of(one: Prepared, texts: Mapping[str, Mapping[str, str]]) -> Iterator[Shown]:
    """The key of every text that shows the model at this size."""
    for printed in one.printed:
        yield Shown(bytes.fromhex(printed), shapes=False)
    made = texts.get(f"{one.model}@{one.size}", {})
    if "torchsummary" in made:
        yield Shown(_key(made["torchsummary"]), shapes=True)
    if "torchinfo_full" in made:
        for key in store.keys_at_depths(read_summary(made["torchinfo_full"])):
            yield Shown(key, shapes=True)


class Collected(NamedTuple):
    """One model with all its sizes, the usual one first."""

    entry: Entry
    sizes: List[Prepared]


def collected(folder: Path) -> List[Collected]:
    """What a folder holds, in the order of FILES and of their lines."""
    found: Dict[Tuple[str, int], Prepared] = {}
    with ProcessPoolExecutor(WORKERS) as pool:
        for one in pool.map(prepared, sorted(folder.glob("*.json.xz")), chunksize=4):
            found[one.model, one.size] = Prepared(*one)
    models = []
    for entry in load_catalogue(list(FILES)):
        sizes = [found[entry.id, size] for size in entry.sizes if (entry.id, size) in found]
        sizes = [one for one in sizes if one.peak and one.params == sizes[0].params]
        if sizes:
            models.append(Collected(entry, sizes))
    return models


def _input(entry: Entry, size: int) -> str:
    if entry.task in TOKENS:
        return f"{size} tokens"
    return f"{size} x {size} pixels" if entry.task in PIXELS else f"input size {size}"


class _File:
    """The file as it grows."""

    def __init__(self) -> None:
        self.models: List[Tuple[Dict[str, Any], Dict[str, Any]]] = []
        self.peaks: List[List[int]] = []
        self.keys: Dict[bytes, Tuple[int, int]] = {}
        self._refused: Dict[bytes, bool] = {}

    def add(self, model: Collected, texts: Mapping[str, Mapping[str, str]]) -> None:
        """Take a model, with the keys of its texts."""
        source, _, name = model.entry.id.partition("/")
        sizes = [[one.size, _input(model.entry, one.size)] for one in model.sizes]
        params = model.sizes[0].params
        about = {"name": f"{source} {name}", "batch": BATCH, "params": params, "sizes": sizes}
        traces = {f"{one.size} {name}": code for one in model.sizes for name, code in one.traces.items()}
        number = len(self.models)
        self.models.append((about, traces))
        self.peaks.append([one.peak for one in model.sizes])
        for place, one in enumerate(model.sizes):
            for text in texts_of(one, texts):
                if text.key:
                    self._take(text, number, place)

    def _take(self, text: Shown, number: int, place: int) -> None:
        """The first model with a key has it; others that differ are named, or spoil a key with shapes."""
        first = self.keys.setdefault(text.key, (number, place))
        if first == (number, place):
            return
        about = self.models[first[0]][0]
        said = self.models[number][0]["sizes"][place][1]
        apart = abs(self.peaks[number][place] / self.peaks[first[0]][first[1]] - 1) > CLOSE
        if text.shapes and apart:
            self._refused[text.key] = True
        elif apart and first[0] != number:
            name = f"{self.models[number][0]['name']} ({said})"
            alike = about.setdefault("alike", {}).setdefault(text.key.hex(), [])
            if name not in alike:
                alike.append(name)

    def content(self) -> bytes:
        """The whole file."""
        kept = {key: place for key, place in self.keys.items() if key not in self._refused}
        with ProcessPoolExecutor(WORKERS) as pool:
            parts = list(pool.map(_part, self.models, chunksize=8))
        return store.pack(parts, kept)


def _part(model: Tuple[Dict[str, Any], Dict[str, Any]]) -> bytes:
    return store.packed(*model)


def main(argv: Optional[List[str]] = None) -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(prog="python -m lab.known.pack", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="what `collect` wrote")
    parser.add_argument("--models", type=int, default=400, help="models in the shipped file at most (400)")
    parser.add_argument("--more", type=Path, metavar="FILE", help="write the models that are left out, too")
    return exit_code(lambda: _run(parser.parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    texts = load_ground_truth().texts
    shipped, rest = _File(), _File()
    for model in collected(options.folder):
        if len(shipped.models) < options.models:
            shipped.add(model, texts)
        elif options.more:
            rest.add(model, texts)
    content = shipped.content()
    path = MODELS / store.FILE
    write_atomic(path, content, mode=None)
    print(f"{shown(path)}: {len(shipped.models)} models, {len(shipped.keys)} texts, {len(content):,} bytes")
    if options.more and rest.models:
        content = rest.content()
        write_atomic(options.more, content, mode=None)
        print(f"{options.more}: {len(rest.models)} models, {len(content):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
