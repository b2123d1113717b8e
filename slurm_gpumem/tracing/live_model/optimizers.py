"""Optimizers by our names, or a user's own one moved to the meta copy."""

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Tuple, Union

import torch
from torch import nn

from slurm_gpumem.errors import UnknownNameError, UsageError
from slurm_gpumem.training_names import plain_name

Given = Union[str, torch.optim.Optimizer, Callable[..., torch.optim.Optimizer], None]
_DEVICES_FOR = tuple(
    f"_get_{kind}_supported_devices" for kind in ("foreach_kernels", "fused_kernels", "capturable")
)
"""torch's functions that list the devices for each."""
_NAMED: Dict[str, Callable[[List[nn.Parameter]], torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.Adam(p),
    "adamw": lambda p: torch.optim.AdamW(p),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "sgd-momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p),
    "adagrad": lambda p: torch.optim.Adagrad(p),
    "adafactor": lambda p: torch.optim.Adafactor(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "adamax": lambda p: torch.optim.Adamax(p),
}


def make_optimizer(given: Given, model: nn.Module, twin: nn.Module) -> torch.optim.Optimizer:
    """An optimizer over the copy's parameters like the one given for the model's."""
    if isinstance(given, torch.optim.Optimizer):
        return _moved(given, model, twin)
    parameters = [p for p in twin.parameters() if p.requires_grad]
    if not parameters:
        raise UsageError("the model has no trainable parameter (requires_grad); nothing to optimize")
    if callable(given):
        return given(parameters)
    name = plain_name(str(given), "optimizer")
    if name not in _NAMED:
        raise UnknownNameError("optimizer", str(given), list(_NAMED))
    return _NAMED[name](parameters)


def name_of(given: Given, optimizer: torch.optim.Optimizer) -> str:
    """Our name for an optimizer, or its class's if we have none."""
    if isinstance(given, str):
        return plain_name(given, "optimizer")
    kind = type(optimizer).__name__.lower()
    if kind == "sgd" and any(group.get("momentum") for group in optimizer.param_groups):
        return "sgd-momentum"
    return kind


def _moved(given: torch.optim.Optimizer, model: nn.Module, twin: nn.Module) -> torch.optim.Optimizer:
    pairs = {id(mine): other for mine, other in zip(model.parameters(), twin.parameters())}
    groups = []
    for group in given.param_groups:
        missing = [p for p in group["params"] if id(p) not in pairs]
        if missing:
            raise UsageError(
                "the optimizer has parameters that are not the model's; give both the same model"
            )
        groups.append({**group, "params": [pairs[id(p)] for p in group["params"]]})
    if not any(group["params"] for group in groups):
        raise UsageError("the optimizer has no parameters")
    accepted = inspect.signature(type(given).__init__).parameters
    defaults = {name: value for name, value in given.defaults.items() if name in accepted}
    kind: Callable[..., torch.optim.Optimizer] = type(given)
    return kind(groups, **defaults)


@contextmanager
def foreach_on_meta() -> Iterator[None]:
    """Inside, optimizers use `foreach`, `fused` and `capturable` for meta tensors as they do for CUDA's."""
    replaced: List[Tuple[Any, str, Any]] = [
        (module, name, vars(module)[name])
        for at, module in list(sys.modules.items())
        if at.startswith(("torch.optim", "torch.utils._foreach_utils"))
        for name in _DEVICES_FOR
        if name in vars(module)
    ]
    for module, name, original in replaced:
        setattr(module, name, _with_meta(original))
    try:
        yield
    finally:
        for module, name, original in replaced:
            setattr(module, name, original)


def _with_meta(devices: Callable[..., List[str]]) -> Callable[..., List[str]]:
    return lambda *args, **kwargs: [*devices(*args, **kwargs), "meta"]
