"""The shape of an input as people write it: "3x224x224", "3,224,224", "35,B,512"; the batch is apart."""

from __future__ import annotations

import re
from typing import List, Sequence, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.summaries.types import UNKNOWN_BATCH, ModelSummary, Shape

SEVERAL = "+"
"""Between the inputs of a model that takes several, where they are one word."""
HELP = "Write the shape of one sample: --input 3,224,224, or with name and type: --input input_ids=128:int64."
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_SIZE = re.compile(r"[0-9]{1,12}")
_BATCH_WORDS = ("B", "b", "-1")


def read_input(text: str) -> Tuple[Shape, str, str]:
    """Shape, name and type of one input: [NAME=]SIZES[:TYPE]; B marks the batch if it is not first."""
    name, equals, rest = text.strip().rpartition("=")
    if equals and not _NAME.fullmatch(name):
        raise UsageError(f"--input {text}: {name!r} is not the name of an argument. {HELP}")
    sizes, _, dtype = rest.partition(":")
    words = (
        [] if sizes in ("", "scalar") else re.split(r"[,x]", sizes.strip("()[]").replace(" ", "").strip(","))
    )
    if not equals and not words:
        raise UsageError(f"--input {text!r}: no sizes. {HELP}")
    found: List[int] = []
    for word in words:
        if word in _BATCH_WORDS:
            found.append(UNKNOWN_BATCH)
        elif _SIZE.fullmatch(word) and int(word) > 0:
            found.append(int(word))
        else:
            raise UsageError(f"--input {text}: {word!r} is not a size. {HELP}")
    if found.count(UNKNOWN_BATCH) > 1:
        raise UsageError(f"--input {text}: the batch (B) can be in one place only")
    return tuple(found) if UNKNOWN_BATCH in found else (UNKNOWN_BATCH, *found), name, dtype


def read_inputs(text: str) -> Tuple[Shape, ...]:
    """The shapes of all inputs of a model."""
    return tuple(read_input(part)[0] for part in split_inputs(text))


def split_inputs(text: str) -> Sequence[str]:
    """The inputs that one word names."""
    return [part for part in text.split(SEVERAL) if part.strip()] or [text]


def shape_words(shape: Shape) -> str:
    """A sample's shape as --input takes it: "3x224x224"."""
    if shape[:1] == (UNKNOWN_BATCH,):
        return "x".join(map(str, shape[1:])) or "scalar"
    return "x".join("B" if size == UNKNOWN_BATCH else str(size) for size in shape)


# An input that could fit a model, for messages that ask for one.

_TOKENS, _IMAGE = (512,), (3, 224, 224)


def example_input(summary: ModelSummary) -> Tuple[int, ...]:
    """One sample's shape: tokens where the first layer looks them up, else an image."""
    return _TOKENS if takes_tokens(summary) else _IMAGE


def takes_tokens(summary: ModelSummary) -> bool:
    """Whether the first layer looks whole numbers up in a table."""
    first = next((layer for layer in summary.layers if layer.leaf and layer.attributes), None)
    return first is not None and first.kind in ("Embedding", "EmbeddingBag")


def torchinfo_call(sample: Sequence[int], tokens: bool) -> str:
    """What prints a model's text with shapes, for one sample of that shape."""
    sizes = ", ".join(str(size) for size in (1, *sample))
    data = f"input_data=torch.zeros({sizes}, dtype=torch.long)" if tokens else f"input_size=({sizes})"
    return f"print(torchinfo.summary(model, {data}, depth=20))"
