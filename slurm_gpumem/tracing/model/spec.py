"""What a user wants traced, as plain values: which code, which inputs, how it is trained.

Nothing here needs torch; the traced process gets the same values as JSON.
"""

from __future__ import annotations

import ast
import json
import os
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.errors import TargetError, UnknownNameError
from slurm_gpumem.summaries.input_shape import read_input
from slurm_gpumem.summaries.types import UNKNOWN_BATCH

FILE, MODULE, HUGGING_FACE, TIMM = "file", "module", "hf", "timm"
NO_OPTIMIZER = "none"
"""Nothing is trained: forward passes without gradients."""
BATCH = UNKNOWN_BATCH
"""Marks the batch dimension in a shape."""

_DTYPES = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp64": "float64",
    "int64": "int64",
    "int32": "int32",
    "int16": "int16",
    "int8": "int8",
    "uint8": "uint8",
    "bool": "bool",
    "complex64": "complex64",
}
_DTYPE_ALIASES = {
    "float": "fp32", "half": "fp16", "bfloat": "bf16", "double": "fp64", "long": "int64", "int": "int64",
    "byte": "uint8",
}  # fmt: skip
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Target:
    """The code that builds a model."""

    kind: str
    """FILE, MODULE, HUGGING_FACE or TIMM."""
    place: str
    """A path, a dotted module name, or the library's own name for the model."""
    attribute: str = ""
    """What to call in it; may be dotted. Empty: to be detected."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the call, or fields of a Hugging Face configuration."""

    @property
    def label(self) -> str:
        """As a user would write it."""
        if self.kind in (HUGGING_FACE, TIMM):
            return f"{self.kind}:{self.place}"
        place = os.path.basename(self.place) if self.kind == FILE else self.place
        return f"{place}:{self.attribute}" if self.attribute else place

    @property
    def library_name(self) -> str:
        """The library's own name for the model, or of its configuration's folder; "" of a user's code."""
        if self.kind not in (HUGGING_FACE, TIMM):
            return ""
        if self.place.endswith(".json"):
            return os.path.basename(os.path.dirname(self.place)) or "config"
        return self.place


@dataclass(frozen=True)
class InputSpec:
    """One tensor of a batch."""

    sizes: Tuple[int, ...]
    """With BATCH in place of the batch size."""
    name: str = ""
    """The keyword it is passed as; empty: by position."""
    dtype: str = ""
    """The name of a torch dtype; empty: the job's default."""

    def shape(self, batch_size: int) -> Tuple[int, ...]:
        """The tensor's shape for a batch."""
        return tuple(batch_size if size == BATCH else size for size in self.sizes)


@dataclass(frozen=True)
class TraceRequest:
    """Everything the traced process needs to know."""

    target: Target
    batch_size: int
    inputs: Tuple[InputSpec, ...] = ()
    batch_callable: Optional[Target] = None
    step_callable: Optional[Target] = None
    loss: str = "auto"
    """A name, or "callable" together with `loss_callable`."""
    loss_callable: Optional[Target] = None
    target_input: Optional[InputSpec] = None
    """What the loss compares the output with, if it cannot be inferred."""
    optimizer: str = "adam"
    optimizer_callable: Optional[Target] = None
    precision: str = "fp32"
    grad_accumulation: int = 1
    checkpointing: bool = False
    channels_last: bool = False
    evaluate: bool = False
    """Also run an evaluation pass after the training step."""
    head: str = ""
    """Which head a Hugging Face model type gets."""

    def to_json(self) -> str:
        """The JSON that the traced process reads."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> TraceRequest:
        """The inverse of `to_json`."""
        values: Dict[str, Any] = json.loads(text)
        for key in ("target", "batch_callable", "step_callable", "loss_callable", "optimizer_callable"):
            values[key] = Target(**values[key]) if values[key] else None
        values["inputs"] = tuple(_input_from(one) for one in values["inputs"])
        values["target_input"] = _input_from(values["target_input"]) if values["target_input"] else None
        return TraceRequest(**values)


def _input_from(values: Dict[str, Any]) -> InputSpec:
    return InputSpec(tuple(values["sizes"]), values["name"], values["dtype"])


def parse_target(text: str, arguments: Mapping[str, Any] = {}) -> Target:
    """The target that `text` names: train.py:build, package.module:build, hf:NAME, timm:NAME."""
    text = text.strip()
    if "(" in text:
        raise TargetError(
            f"{text}: give the callable's name only; its arguments go into --set name=value, once for each"
        )
    library, _, name = text.partition(":")
    if library in (HUGGING_FACE, TIMM):
        if not name:
            example = "hf:BertForSequenceClassification" if library == HUGGING_FACE else "timm:resnet50"
            raise TargetError(f"{text}: no name after the colon; write it like {example}")
        return Target(library, name, "", dict(arguments))
    place, _, attribute = text.rpartition(":") if ":" in text else (text, "", "")
    if attribute and not _DOTTED.fullmatch(attribute):
        raise TargetError(
            f"{text}: {attribute!r} is not the name of a callable; write it like train.py:build_model"
        )
    if looks_like_file(place):
        return _file_target(place, attribute, arguments)
    if _DOTTED.fullmatch(place):
        return Target(MODULE, place, attribute, dict(arguments))
    raise TargetError(
        f"{text}: neither a file nor a module.\n"
        "Name the model's code like train.py:build_model, package.module:build_model,\n"
        "timm:resnet50 or hf:BertForSequenceClassification."
    )


def looks_like_file(place: str) -> bool:
    """Whether a target's place is a path rather than a dotted module name."""
    return place.endswith((".py", ".json")) or os.sep in place or os.path.exists(place)


def _file_target(place: str, attribute: str, arguments: Mapping[str, Any]) -> Target:
    if not os.path.exists(place):
        raise TargetError(f"{place}: no such file")
    config = os.path.join(place, "config.json") if os.path.isdir(place) else place
    if config.endswith(".json") and os.path.isfile(config) and not attribute:
        return Target(HUGGING_FACE, os.path.abspath(config), "", dict(arguments))
    if os.path.isdir(place):
        raise TargetError(
            f"{place}: is a directory; name the file in it, like {place.rstrip(os.sep)}/train.py:build_model"
        )
    if not os.access(place, os.R_OK):
        raise TargetError(f"{place}: cannot be read: permission denied")
    return Target(FILE, os.path.abspath(place), attribute, dict(arguments))


def parse_input(text: str) -> InputSpec:
    """One --input: [NAME=]SIZES[:DTYPE]; B marks the batch dimension if it is not the first."""
    shape, name, dtype = read_input(text)
    return InputSpec(shape, name, torch_dtype(dtype) if dtype else "")


def torch_dtype(name: str) -> str:
    """torch's name for an element type, from "fp16", "float16", "torch.int64", "long"."""
    short = name.strip().lower()
    short = short[len("torch.") :] if short.startswith("torch.") else short
    if short in _DTYPES.values():
        return short
    short = _DTYPE_ALIASES.get(short, short)
    if short not in _DTYPES:
        raise UnknownNameError("input dtype", name, list(_DTYPES))
    return _DTYPES[short]


def parse_arguments(pairs: Sequence[str]) -> Dict[str, Any]:
    """--set name=value, each value parsed as Python (10, 0.1, [3, 4], True), otherwise a word."""
    found: Dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise TargetError(f"--set {pair}: write it like --set num_classes=10")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found[name] = {"true": True, "false": False, "none": None}.get(value.lower(), value)
        try:
            json.dumps(found[name])
        except (TypeError, ValueError):
            raise TargetError(
                f"--set {pair}: only numbers, words, lists and dictionaries can be given"
            ) from None
    return found
