"""Deep copies of models that keep things which Python cannot copy: modules, locks, open files."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict

from torch import Tensor, nn

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
