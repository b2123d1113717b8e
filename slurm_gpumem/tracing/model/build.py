"""Build the model that a target names, in the traced process: without values if possible."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from slurm_gpumem.errors import TargetError
from slurm_gpumem.tracing.engine.values import follow, value_of
from slurm_gpumem.tracing.model import hub
from slurm_gpumem.tracing.model.load import call, find_callable
from slurm_gpumem.tracing.model.spec import HUGGING_FACE, TIMM, TraceRequest
from slurm_gpumem.tracing.script.imports import AfterImport
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


# -- Checkpointing: with the library's own switch, otherwise around every repeated block -----------


def checkpoint_blocks(model: Any) -> str:
    """Turn it on; returns what was done, in words. Raises TargetError if the model has no blocks."""
    if getattr(model, "supports_gradient_checkpointing", False):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return "checkpointing: transformers' own"
    if hasattr(model, "set_grad_checkpointing"):
        model.set_grad_checkpointing(True)
        return "checkpointing: timm's own"
    blocks = repeated_blocks(model)
    if not blocks:
        raise TargetError(
            "--checkpointing: the model has no repeated blocks to checkpoint; add checkpointing to its code"
        )
    for block in blocks:
        # A subclass, not a new attribute: copies of the model stay checkpointed.
        kind = type(block)
        block.__class__ = type(kind.__name__, (kind,), {"forward": _checkpointed(kind)})
    return f"checkpointing: each of the {len(blocks)} {type(blocks[0]).__name__} blocks"


def repeated_blocks(model: nn.Module) -> List[nn.Module]:
    """The outermost modules that occur several times and contain layers."""
    kinds: Counter[type] = Counter(type(m) for m in model.modules() if list(m.children()))
    plain = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
    found: List[nn.Module] = []

    def walk(module: nn.Module) -> None:
        for child in module.children():
            if not isinstance(child, plain) and kinds[type(child)] > 1:
                found.append(child)
            else:
                walk(child)

    walk(model)
    sizes: Dict[type, int] = {}
    for block in found:
        sizes[type(block)] = sizes.get(type(block), 0) + sum(p.numel() for p in block.parameters())
    if not sizes:
        return []
    main = max(sizes, key=lambda kind: sizes[kind])
    return [block for block in found if type(block) is main]


def _checkpointed(kind: Any) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return kind.forward(self, *args, **kwargs)
        return checkpoint(lambda *a, **k: kind.forward(self, *a, **k), *args, use_reentrant=False, **kwargs)

    return forward


# -- Pretrained weights: memory does not depend on their values ------------------------------------

_SAID = "pretrained weights were not loaded: memory does not depend on their values"
_OF_WEIGHTS = (
    "device_map",
    "low_cpu_mem_usage",
    "quantization_config",
    "ignore_mismatched_sizes",
    "use_safetensors",
)
"""Arguments of `from_pretrained` that a configuration does not take."""


class _NoWeights(Dict[str, Any]):
    """A state dict without weights, distinguishable from an empty one."""


def without_downloads(note: Callable[[str], None]) -> None:
    """From now on torch.hub, timm and transformers give a model no weights; what it was made with stays."""

    def no_state(*args: Any, **kwargs: Any) -> _NoWeights:
        note(_SAID)
        return _NoWeights()

    real_load = torch.nn.Module.load_state_dict

    def load(self: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(state, _NoWeights):
            return torch.nn.modules.module._IncompatibleKeys([], [])
        return real_load(self, state, *args, **kwargs)

    def from_pretrained(kind: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        note(_SAID)
        return _from_configuration(kind, name, kwargs)

    def in_timm(module: Any) -> None:
        module.load_pretrained = lambda *args, **kwargs: note(_SAID)

    def in_transformers(module: Any) -> None:
        module.PreTrainedModel.from_pretrained = classmethod(from_pretrained)

    def in_auto_classes(module: Any) -> None:
        module._BaseAutoModelClass.from_pretrained = classmethod(from_pretrained)

    torch.hub.load_state_dict_from_url = no_state
    torch.nn.Module.load_state_dict = load  # type: ignore[method-assign,assignment]
    AfterImport(
        {
            "timm.models._builder": in_timm,
            "transformers.modeling_utils": in_transformers,
            "transformers.models.auto.auto_factory": in_auto_classes,
        }
    ).install()


def _from_configuration(kind: Any, name: Any, kwargs: Dict[str, Any]) -> Any:
    """The model of a checkpoint's configuration, with fresh weights."""
    from transformers import AutoConfig

    config = kwargs.pop("config", None)
    dtype = kwargs.pop("dtype", None) or kwargs.pop("torch_dtype", None)
    for unused in _OF_WEIGHTS:
        kwargs.pop(unused, None)
    if config is None:
        config, kwargs = AutoConfig.from_pretrained(name, return_unused_kwargs=True, **kwargs)
    kwargs.pop("trust_remote_code", None)
    model = kind.from_config(config, **kwargs) if hasattr(kind, "from_config") else kind(config)
    return model.to(dtype) if isinstance(dtype, torch.dtype) else model
