"""PyTorch's FSDP, both kinds: traced as the model itself, while it is noted how ranks would divide it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Dict, List, Tuple

import torch
from torch import nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from slurm_gpumem.tracing.script.division import fsdp1_name, precision_options
from slurm_gpumem.tracing.script.imports import AfterImport
from slurm_gpumem.tracing.script.process_group import Nccl
from slurm_gpumem.tracing.script.streams import FURTHER_STREAM

_ALONE = "FSDP on one GPU is traced as the model itself"
_OFFLOAD = "FSDP's CPU offload is not counted: with it each GPU needs less"


class _Seen:
    tracer: Any = None


def install(tracer: Any) -> None:
    """Wait for FSDP's modules."""
    _Seen.tracer = tracer

    def whole_parameters(fsdp: Any) -> None:
        for name in ("FullyShardedDataParallel", "fully_shard", "FSDPModule"):
            if hasattr(fsdp, name):
                setattr(fsdp, name, globals()[name])

    names = ("torch.distributed.fsdp", "torch.distributed.fsdp.fully_sharded_data_parallel",
             "torch.distributed._composable.fsdp")  # fmt: skip
    AfterImport(dict.fromkeys(names, whole_parameters)).install()
    AfterImport({"accelerate.utils.fsdp_utils": _load_whole_weights}).install()


def _load_whole_weights(module: Any) -> None:
    """accelerate loads the parts of each rank; here the model has all of them."""

    def load(accelerator: Any, model: Any, full_sd: Any, *args: Any, **kwargs: Any) -> Any:
        model.to_empty(device="cuda")
        if hasattr(model, "tie_weights"):
            model.tie_weights()
        return model

    module.fsdp2_load_full_state_dict = load


def _noted(module: nn.Module, name: str, precision: Dict[str, str], *, offload: bool) -> None:
    division = _Seen.tracer.division
    others = division.parameters()
    whole = any(
        id(parameter) not in others and Nccl.recorder.block_of(parameter) is not None
        for parameter in module.parameters()
    )
    division.unit(module, name, **precision, **({"whole": "yes"} if whole else {}))
    if not division.several:
        _Seen.tracer.note(_ALONE)
    if offload:
        _Seen.tracer.note(_OFFLOAD)


def _on_gpu(module: nn.Module) -> nn.Module:
    """FSDP moves what is on the CPU."""
    moved: nn.Module = module._apply(lambda tensor: tensor.cuda() if tensor.device.type == "cpu" else tensor)
    return moved


def _cast(module: nn.Module, half: torch.dtype) -> None:
    """Weights as ranks compute with them; what they keep in fp32 is computed from the number of ranks."""
    for parameter in module.parameters():
        if parameter.is_floating_point() and parameter.dtype != half:
            parameter.data = parameter.data.to(half)


class FullyShardedDataParallel(nn.Module):
    """The model itself. Mixed precision casts the parameters for a pass."""

    def __init__(
        self,
        module: nn.Module,
        process_group: Any = None,
        sharding_strategy: Any = None,
        cpu_offload: Any = None,
        auto_wrap_policy: Any = None,
        backward_prefetch: Any = None,
        mixed_precision: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        division = _Seen.tracer.division
        Nccl.at_work()
        self._half = getattr(mixed_precision, "param_dtype", None)
        types = precision_options(self._half, getattr(mixed_precision, "reduce_dtype", None))
        name = fsdp1_name(sharding_strategy, division)
        offload = bool(getattr(cpu_offload, "offload_params", cpu_offload))
        for part in _parts(module, auto_wrap_policy):
            _noted(part, name, types, offload=offload)
        _noted(module, name, types, offload=offload)
        if division.several and types:
            _cast(module, torch.bfloat16)
        if kwargs.get("device_id") is not None:
            module = _on_gpu(module)
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's."""
        if self._half is None:
            return self.module(*args, **kwargs)
        if _Seen.tracer.division.several:
            args, kwargs = _cast_inputs((args, kwargs), torch.bfloat16)
            return self.module(*args, **kwargs)
        return _in_half(self.module, self.module, self._half, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def no_sync(self) -> Any:
        """There is nobody to wait for."""
        return nullcontext()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Any:
        """Of all gradients together."""
        return nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)

    @staticmethod
    def fsdp_modules(module: nn.Module, root_only: bool = False) -> List[Any]:
        """Those inside, whose parameters' types somebody wants to look at: none is flat."""
        return []

    @staticmethod
    def state_dict_type(*args: Any, **kwargs: Any) -> Any:
        """Every kind is the model's own."""
        return nullcontext()

    set_state_dict_type = summon_full_params = state_dict_type

    @staticmethod
    def optim_state_dict(model: Any, optim: Any, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        """The optimizer's own."""
        found: Dict[str, Any] = optim.state_dict()
        return found

    full_optim_state_dict = sharded_optim_state_dict = optim_state_dict


def _parts(module: nn.Module, policy: Any) -> List[nn.Module]:
    """The modules inside that a policy wraps."""
    if policy is None:
        return []
    if hasattr(policy, "_run_policy"):
        return [part for part in policy._run_policy(module, set(), {}) if part is not module]
    found: List[nn.Module] = []
    _walk(module, policy, found)
    return found


def _walk(module: nn.Module, policy: Any, found: List[nn.Module]) -> int:
    """A function's answers, asked as PyTorch does, children first; returns the elements that are wrapped."""
    wrapped = 0
    for child in module.children():
        size = sum(parameter.numel() for parameter in child.parameters())
        inside = (
            _walk(child, policy, found) if policy(module=child, recurse=True, nonwrapped_numel=size) else 0
        )
        if policy(module=child, recurse=False, nonwrapped_numel=size - inside):
            found.append(child)
            inside = size
        wrapped += inside
    return wrapped


class FSDPModule:
    """What a module of FSDP2 can be asked: nothing is to be done for it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("set_", "unshard", "reshard")):
            return lambda *args, **kwargs: None
        found: Any = super().__getattr__(name)  # type: ignore[misc]
        return found


def fully_shard(module: Any, *, mesh: Any = None, reshard_after_forward: Any = None, **kwargs: Any) -> Any:
    """FSDP2's way: the model itself, its parameters cast for a pass where it says so."""
    division = _Seen.tracer.division
    Nccl.recorder.once("stream", FURTHER_STREAM, "stream")  # it gathers on one, of one process too
    if mesh is not None and mesh.ndim > 1:
        division.cannot("FSDP2 on a mesh of two dimensions divides over one and copies over the other")
    policy = kwargs.get("mp_policy")
    half = getattr(policy, "param_dtype", None)
    types = precision_options(half, getattr(policy, "reduce_dtype", None))
    name = "fsdp-grad-op" if reshard_after_forward is False else "fsdp"
    offload = type(kwargs.get("offload_policy")).__name__ == "CPUOffloadPolicy"
    torch.Tensor.full_tensor = torch.Tensor.to_local = lambda tensor: tensor  # type: ignore[attr-defined]
    for one in module if isinstance(module, (list, tuple)) else (module,):
        _noted(one, name, types, offload=offload)
        if division.several and types:
            _cast(one, torch.bfloat16)
        _on_gpu(one)
        if half is not None:
            one.forward = _forward_in(one, torch.bfloat16 if division.several and types else half)
        # The same name: blocks are known by their class.
        kind = type(one)
        one.__class__ = type(kind.__name__, (FSDPModule, kind), {"__module__": kind.__module__})
    return module


def _forward_in(module: Any, half: torch.dtype) -> Any:
    forward = module.forward

    def in_half(*args: Any, **options: Any) -> Any:
        if any(p.dtype == half for p in module.parameters()):
            args, options = _cast_inputs((args, options), half)
            return forward(*args, **options)  # cast already, by a model around it or for good
        return _in_half(module, forward, half, args, options)

    return in_half


def _cast_inputs(values: Any, half: torch.dtype) -> Any:
    def cast(value: Any) -> Any:
        return value.to(half) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    return pytree.tree_map(cast, values)


def _in_half(module: nn.Module, call: Any, half: torch.dtype, args: Tuple[Any, ...], kwargs: Any) -> Any:
    """A pass with parameters and inputs of another type; gradients come back in the parameters' own."""
    parameters = {name: _cast_inputs(value, half) for name, value in module.named_parameters()}
    args, kwargs = _cast_inputs((args, kwargs), half)
    if call is module:
        return functional_call(module, parameters, args, kwargs)
    with nn.utils.stateless._reparametrize_module(module, parameters):
        return call(*args, **kwargs)
