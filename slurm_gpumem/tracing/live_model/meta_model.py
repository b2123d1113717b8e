"""A copy of a model on meta tensors: the same structure and types, no values."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict
from contextlib import suppress
from types import CellType, FunctionType
from typing import Any, Callable, Dict, Tuple, cast

import torch
from torch import Tensor, nn

from slurm_gpumem.tracing.cuda.sparse_products import sparse_on_meta
from slurm_gpumem.tracing.engine.values import give, small

# Deep copies of models that keep things which Python cannot copy: modules, locks, open files.

_DEEPCOPY = copy.deepcopy.__code__


def copied(model: nn.Module, known: Dict[int, Any], of_tensor: Callable[[Tensor], Tensor]) -> nn.Module:
    """`deepcopy` in which the copy shares what cannot be copied with the model.

    `known` holds copies by the id of what they replace, as deepcopy's memo, and has all of them afterwards.
    `of_tensor` copies results of computations, which deepcopy refuses. Layers have to be copied, so where one
    refuses, its error stands.
    """
    by_reference: Dict[int, Any] = {}
    while True:
        memo = {**known, **by_reference}  # what a failed attempt left in it is half filled
        try:
            twin: nn.Module = copy.deepcopy(model, memo)
        except (TypeError, RuntimeError) as error:
            found = _uncopied(error)
            if found is None or isinstance(found, nn.Module) or id(found) in by_reference:
                raise
            by_reference[id(found)] = of_tensor(found.detach()) if isinstance(found, Tensor) else found
            continue
        known.update(memo)
        return twin


def _uncopied(error: BaseException) -> Any:
    """The object at which deepcopy stopped: the argument of its innermost call."""
    found, step = None, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code is _DEEPCOPY:
            found = step.tb_frame.f_locals.get("x")
        step = step.tb_next
    return found


META = torch.device("meta")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile` and data-parallel wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def meta_twin(model: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers are meta tensors; the model itself is not changed."""
    if isinstance(model, torch.jit.ScriptModule):
        return _scripted_twin(model)
    known: Dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        known[id(tensor)] = to_meta(tensor)
        if tensor.grad is not None:
            known[id(tensor.grad)] = None
    for tensor in (*model.buffers(), *(p for p in model.parameters() if p.numel() == 1)):
        # Numbers that code may read: depths, tables of indices, a temperature.
        if tensor.device != META and small(tensor) and tensor.layout == torch.strided:
            give(known[id(tensor)], tensor.detach().cpu().clone())
    for module in model.modules():
        for value in vars(module).values():
            # Weights that a hook computes before each pass (weight norm, pruning) are plain attributes.
            if isinstance(value, Tensor) and value.grad_fn is not None:
                known[id(value)] = to_meta(value.detach())
    twin = copied(model, known, to_meta)
    for module in twin.modules():
        for name, value in list(vars(module).items()):
            vars(module)[name] = _of_twin(value, known)
    return twin


def _of_twin(value: Any, copies: Dict[int, Any]) -> Any:
    """Functions that hold layers or tensors of the model (a lambda, a hook), with those of its copy.

    `deepcopy` leaves functions as they are, so they would go on using the model's own.
    """
    if isinstance(value, (nn.Module, Tensor)):
        return copies.get(id(value), value)
    if isinstance(value, FunctionType) and value.__closure__:
        return _rebound(value, value.__closure__, copies)
    if type(value) in (list, tuple):
        items = [_of_twin(item, copies) for item in value]
        return value if all(a is b for a, b in zip(items, value)) else type(value)(items)
    if type(value) in (dict, OrderedDict):
        named = {key: _of_twin(item, copies) for key, item in value.items()}
        return value if all(named[key] is item for key, item in value.items()) else type(value)(named)
    return value


def _rebound(function: FunctionType, closure: Tuple[CellType, ...], copies: Dict[int, Any]) -> FunctionType:
    done = copies.get(id(function))
    if done is not None and done is not function:
        return cast(FunctionType, done)
    cells = tuple(CellType() for _ in closure)
    code, names = function.__code__, function.__globals__
    twin = FunctionType(code, names, function.__name__, function.__defaults__, cells)
    twin.__kwdefaults__ = function.__kwdefaults__
    vars(twin).update(vars(function))
    copies[id(function)] = twin  # before its cells: a function may refer to itself
    for cell, old in zip(cells, closure):
        with suppress(ValueError):  # a name that has no value yet
            cell.cell_contents = _of_twin(old.cell_contents, copies)
    return twin


def _scripted_twin(model: torch.jit.ScriptModule) -> nn.Module:
    """A copy of a model made by `torch.jit.script`; with any other copy its parameters cannot be trained."""
    kept = io.BytesIO()
    torch.jit.save(model, kept)
    kept.seek(0)
    twin: nn.Module = torch.jit.load(kept, map_location=META)
    return twin


def to_meta(tensor: Tensor) -> Tensor:
    """The same tensor without its values."""
    if tensor.device == META:
        return tensor
    if tensor.layout != torch.strided:
        empty = sparse_on_meta(tensor)
    else:
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty
