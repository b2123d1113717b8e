"""Build a catalogue entry's network quickly: real structure, no time spent on weight values."""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, Tuple

import torch
from torch import Tensor, nn

from lab.networks.entries import Entry
from lab.networks.repositories import build_from_repository

LARGE = 1 << 16
"""Floating-point tensors of more elements are not copied to the GPU: their values do not matter."""
_INIT = (
    "uniform_",
    "normal_",
    "trunc_normal_",
    "constant_",
    "ones_",
    "zeros_",
    "xavier_uniform_",
    "xavier_normal_",
)
_INIT_MORE = ("kaiming_uniform_", "kaiming_normal_", "orthogonal_", "sparse_", "eye_", "dirac_")


def build_model(entry: Entry) -> nn.Module:
    """The entry's network on the current default device, its weights not initialised."""
    with _without_init():
        return _BUILDERS[entry.source](entry).train()


def _torchvision(entry: Entry) -> nn.Module:
    models = importlib.import_module("torchvision").models
    args = {name: None if value == "none" else value for name, value in entry.args.items()}
    if entry.build in ("googlenet", "inception_v3"):
        args["init_weights"] = False  # by default they warn, and draw millions of numbers with scipy
    model: nn.Module = models.get_model(entry.build, weights=None, **args)
    return model


def _timm(entry: Entry) -> nn.Module:
    timm = importlib.import_module("timm")
    model: nn.Module = timm.create_model(entry.build, pretrained=False, **entry.args)
    return model


def _transformers(entry: Entry) -> nn.Module:
    transformers = importlib.import_module("transformers")
    kind = getattr(transformers, entry.build)
    model: nn.Module = kind(kind.config_class(**entry.args))
    return model


def _repository(entry: Entry) -> nn.Module:
    return build_from_repository(entry.build, entry.args)


_BUILDERS: Dict[str, Callable[[Entry], nn.Module]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
    "repository": _repository,
}


def move(model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """`model.to(device, dtype)`: the same allocations in the same order, without the large copies."""

    def convert(t: Tensor) -> Tensor:
        target = dtype if t.is_floating_point() else t.dtype
        if t.device == device and t.dtype == target:
            return t
        if t.is_floating_point() and t.numel() > LARGE:
            return torch.empty_like(t, device=device, dtype=target)
        return t.to(device, target)

    moved: nn.Module = model._apply(convert)
    _fill(moved)
    return moved


@torch.no_grad()
def _fill(model: nn.Module) -> None:
    # Finite, varied weights: NaN would make the gradient scaler skip every step. In place, so no allocation.
    for name, p in model.named_parameters():
        if p.dim() > 1 and p.device.type == "cuda":
            p.normal_(0, 0.02)
        elif p.dim() > 1:
            p.fill_(0.01)  # a dry run on the CPU: random numbers would take most of its time
        else:
            p.fill_(1.0 if name.endswith("weight") else 0.0)


@contextmanager
def _without_init() -> Iterator[None]:
    """Initialisation functions do nothing inside; tensors keep what memory held."""
    patched: List[Tuple[Any, str, Any]] = []

    def skip(owner: Any, name: str, function: Any = None) -> None:
        if owner is not None and hasattr(owner, name):
            patched.append((owner, name, getattr(owner, name)))
            setattr(owner, name, function or _same)

    for name in (*_INIT, *_INIT_MORE):
        skip(nn.init, name)
    for name in ("normal_", "uniform_", "erfinv_", "trunc_normal_"):
        skip(Tensor, name)
    skip(sys.modules.get("timm.layers.weight_init"), "_trunc_normal_")
    modeling = sys.modules.get("transformers.modeling_utils")
    skip(getattr(modeling, "PreTrainedModel", None), "initialize_weights", lambda self: None)
    try:
        yield
    finally:
        for owner, name, value in reversed(patched):
            setattr(owner, name, value)


def _same(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    return tensor


def import_sources(entries: Iterable[Entry]) -> Dict[str, str]:
    """Import what the entries need once, so that forked children have it; versions, or why one is missing."""
    importlib.import_module(
        "torch._dynamo"
    )  # optimizers import it at their first step: seconds, in every child
    found = {"torch": str(torch.__version__)}
    classes = {entry.build for entry in entries if entry.source == "transformers"}
    for name in sorted({entry.source for entry in entries} - {"repository"}):
        try:
            module = importlib.import_module(name)
            found[name] = str(getattr(module, "__version__", "?"))
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            found[name] = f"missing: {error}"[:200]
    for name in sorted(classes) if "missing" not in found.get("transformers", "missing") else ():
        try:
            getattr(sys.modules["transformers"], name)
        except (ImportError, AttributeError) as error:
            found[f"transformers.{name}"] = f"missing: {error}"[:200]
    return found
