"""Do not load pretrained weights: memory does not depend on their values. In the traced process."""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch

from slurm_gpumem.tracing.script.imports import AfterImport

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
