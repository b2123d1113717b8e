"""The file of known models: which summaries are which model's, and each model's traced steps.

    gpumem-known-models/1\n
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
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.data import FOLDERS, data_file
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators.known.fingerprint import KEY_BYTES
from slurm_gpumem.estimators.types import TrainingJob

if TYPE_CHECKING:
    from slurm_gpumem.summaries.trace_types import Trace

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
        from slurm_gpumem.estimators.known.codec import STORED_AS, decode

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
