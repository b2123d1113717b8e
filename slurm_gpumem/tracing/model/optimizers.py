"""Optimizers by our names, or a user's own one."""

from __future__ import annotations

import sys
from typing import Callable, Dict, List, Union

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


def check(given: Given, model: nn.Module) -> None:
    """UsageError for an optimizer that cannot train the model, or of a name that is not known."""
    if isinstance(given, torch.optim.Optimizer):
        own = {id(p) for p in model.parameters()}
        parameters = [p for group in given.param_groups for p in group["params"]]
        if any(id(p) not in own for p in parameters):
            raise UsageError(
                "the optimizer has parameters that are not the model's; give both the same model"
            )
        if not parameters:
            raise UsageError("the optimizer has no parameters")
    elif given is not None:
        if not any(p.requires_grad for p in model.parameters()):
            raise UsageError("the model has no trainable parameter (requires_grad); nothing to optimize")
        if not callable(given) and plain_name(str(given), "optimizer") not in _NAMED:
            raise UnknownNameError("optimizer", plain_name(str(given), "optimizer"), list(_NAMED))


def make_optimizer(given: Given, model: nn.Module) -> torch.optim.Optimizer:
    """The given one, or a new one over the model's parameters."""
    check(given, model)
    if isinstance(given, torch.optim.Optimizer):
        return given
    make = given if callable(given) else _NAMED[plain_name(str(given), "optimizer")]
    return make([p for p in model.parameters() if p.requires_grad])


def name_of(given: Given, optimizer: torch.optim.Optimizer) -> str:
    """Our name for an optimizer, or its class's if we have none."""
    if isinstance(given, str):
        return plain_name(given, "optimizer")
    kind = type(optimizer).__name__.lower()
    if kind == "sgd" and any(group.get("momentum") for group in optimizer.param_groups):
        return "sgd-momentum"
    return kind


def foreach_on_meta() -> None:
    """From now on optimizers use `foreach`, `fused` and `capturable` for meta tensors as for CUDA's."""
    for at, module in list(sys.modules.items()):
        if at.startswith(("torch.optim", "torch.utils._foreach_utils")):
            for name in _DEVICES_FOR:
                if name in vars(module):
                    setattr(module, name, _with_meta(vars(module)[name]))


def _with_meta(devices: Callable[..., List[str]]) -> Callable[..., List[str]]:
    return lambda *args, **kwargs: [*devices(*args, **kwargs), "meta"]
