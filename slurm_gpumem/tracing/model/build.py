"""Build the model that a target names, in the traced process: without values if possible."""

from __future__ import annotations

import os
from typing import Any, Callable, Tuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from slurm_gpumem.errors import TargetError
from slurm_gpumem.tracing.engine.values import follow, value_of
from slurm_gpumem.tracing.model import hub
from slurm_gpumem.tracing.model.load import call, find_callable
from slurm_gpumem.tracing.model.spec import HUGGING_FACE, TIMM, TraceRequest
from slurm_gpumem.tracing.user_line import own_words, user_line

# While a model is built on the meta device: small tensors keep their values, so that code can read them.

aten = torch.ops.aten


class KnownValues(TorchDispatchMode):
    """Follows the values of small tensors; one that is read and not known is torch's own error."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, and follow its values."""
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default and value_of(args[0]) is not None:
            return value_of(args[0]).item()  # type: ignore[union-attr]
        if func is aten._to_copy.default and value_of(args[0]) is not None:
            device = kwargs.get("device")
            if device is not None and device.type == "cpu":
                return func(value_of(args[0]), *args[1:], **kwargs)
        result = func(*args, **kwargs)
        follow(func, args, kwargs, result)
        return result


_META, _CPU = "meta", "cpu"


class Builder:
    """Builds the model: on "cuda", where tensors have no values, or on the CPU for code that reads them."""

    def __init__(
        self, request: TraceRequest, enter: Callable[[str], None], note: Callable[[str], None]
    ) -> None:
        self._request, self._enter, self._note = request, enter, note
        self._function: Any = None
        target = request.target
        self._label = target.label
        if target.kind not in (HUGGING_FACE, TIMM):
            enter(f"importing {os.path.basename(target.place)}")
            self._function, self._label = find_callable(target)

    def build(self) -> Tuple[nn.Module, str]:
        """The model, and where it was built."""
        self._enter("building the model")
        if isinstance(self._function, nn.Module):
            return self._function, _CPU
        try:
            # A value that is not known must be an error here, not a guess: it may decide a layer's size.
            with torch.device("cuda"), KnownValues():
                made, where = self._made(), _META
        except (TargetError, SystemExit):
            raise
        except Exception as error:
            if not _blames_meta(error):
                raise
            self._note(f"built on the CPU, because it reads values: {user_line(error) or own_words(error)}")
            made, where = self._made(), _CPU
        self._enter("building the model")  # here ends a process that the code has forked
        return _checked(made, self._label), where

    def on_cpu(self) -> nn.Module:
        """The model as its code builds it."""
        return _checked(self._made(), self._label)

    def _made(self) -> Any:
        target = self._request.target
        if target.kind == TIMM:
            return hub.build_timm(target.place, target.arguments)
        if target.kind == HUGGING_FACE:
            made, said = hub.build_hugging_face(target.place, target.arguments, self._request.head)
            if said:
                self._note(said)
            return made
        return call(self._function, self._label, target.arguments)


def _blames_meta(error: BaseException) -> bool:
    """Whether real tensors would fix the failure: missing values were read or moved."""
    text = f"{type(error).__name__} {error}".lower()
    return any(
        word in text for word in ("meta", "fake", "item()", "data-dependent", "expected all tensors", "numpy")
    )


def _checked(made: Any, label: str) -> nn.Module:
    if isinstance(made, nn.Module):
        return made
    parts = list(made.values()) if isinstance(made, dict) else made
    if isinstance(parts, (tuple, list)):
        models = [one for one in parts if isinstance(one, nn.Module)]
        if models:
            return models[0] if len(parts) == 1 else Several(made)
    what = "nothing (None)" if made is None else f"a {type(made).__name__}"
    raise TargetError(
        f"{label} returned {what}, not a torch.nn.Module.\n"
        "Name a class of models, or a function that returns one."
    )


class Several(nn.Module):
    """What a builder returned beside its model is on the GPU as well: a teacher, a discriminator.

    Its forward is the first model's; a user's step gets what the builder returned, in its form.
    """

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.made = made
        values = made.values() if isinstance(made, dict) else made
        self.parts = nn.ModuleList(one for one in values if isinstance(one, nn.Module))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The first model's."""
        return self.parts[0](*args, **kwargs)
