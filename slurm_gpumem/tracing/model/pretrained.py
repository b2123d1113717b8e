"""Do not load pretrained weights: memory does not depend on their values."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch

_SAID = "pretrained weights were not loaded: memory does not depend on their values"


@contextmanager
def without_downloads(note: Callable[[str], None]) -> Iterator[None]:
    """Inside, torch.hub returns an empty state dict, which any model accepts."""
    saved: List[Tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        saved.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def no_state(*args: Any, **kwargs: Any) -> _NoWeights:
        note(_SAID)
        return _NoWeights()

    real_load = torch.nn.Module.load_state_dict

    def load(self: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(state, _NoWeights):
            return torch.nn.modules.module._IncompatibleKeys([], [])
        return real_load(self, state, *args, **kwargs)

    replace(torch.hub, "load_state_dict_from_url", no_state)
    replace(torch.nn.Module, "load_state_dict", load)
    finder = _Patcher(no_state, note)
    sys.meta_path.insert(0, finder)
    finder.patch_loaded()
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for owner, name, value in reversed(saved):
            setattr(owner, name, value)


class _NoWeights(Dict[str, Any]):
    """A state dict without weights, distinguishable from an empty one."""


class _Patcher:
    """Patches timm and transformers only when the user's code imports them: importing them is slow."""

    def __init__(self, no_state: Callable[..., Any], note: Callable[[str], None]) -> None:
        self._no_state = no_state
        self._note = note

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Wrap the loaders of the modules that load weights."""
        if name not in (
            "timm.models._builder",
            "transformers.modeling_utils",
            "transformers.models.auto.auto_factory",
        ):
            return None
        import importlib.util

        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        real = spec.loader.exec_module

        def execute(module: Any) -> None:
            real(module)
            self._patch(name, module)

        spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec

    def patch_loaded(self) -> None:
        """Patch what is already imported."""
        for name in (
            "timm.models._builder",
            "transformers.modeling_utils",
            "transformers.models.auto.auto_factory",
        ):
            if name in sys.modules:
                self._patch(name, sys.modules[name])

    def _patch(self, name: str, module: Any) -> None:
        if name == "timm.models._builder":
            module.load_pretrained = lambda *args, **kwargs: self._note(_SAID)
        elif name == "transformers.modeling_utils":
            module.PreTrainedModel.from_pretrained = classmethod(self._fresh)
        else:
            module._BaseAutoModelClass.from_pretrained = classmethod(self._fresh)

    @property
    def _fresh(self) -> Callable[..., Any]:
        # A plain function: a bound method would not receive the class.
        def from_pretrained(kind: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
            return self._from_pretrained(kind, name, *args, **kwargs)

        return from_pretrained

    def _from_pretrained(self, kind: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        """The model of a checkpoint's configuration, with fresh weights."""
        from transformers import AutoConfig

        config = kwargs.pop("config", None)
        dtype = kwargs.pop("dtype", None) or kwargs.pop("torch_dtype", None)
        for unused in (
            "device_map",
            "low_cpu_mem_usage",
            "quantization_config",
            "ignore_mismatched_sizes",
            "use_safetensors",
        ):
            kwargs.pop(unused, None)
        if config is None:
            config, kwargs = AutoConfig.from_pretrained(name, return_unused_kwargs=True, **kwargs)
        kwargs.pop("trust_remote_code", None)
        self._note(_SAID)
        model = kind.from_config(config, **kwargs) if hasattr(kind, "from_config") else kind(config)
        return model.to(dtype) if isinstance(dtype, torch.dtype) else model
