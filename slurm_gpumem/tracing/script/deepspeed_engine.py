"""DeepSpeed in a traced script: an engine that trains the model as one process, its ZeRO stage noted.

DeepSpeed's own engine flattens and divides the weights when it is made. Here they stay as they are; what each
rank holds is computed from the stage and the sizes of the buckets in its configuration.
"""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from typing import Any, Dict, Mapping, Optional, Tuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from slurm_gpumem.tracing.script.imports import AfterImport

_OPTIONS = {
    1: ("reduce_bucket_size",),
    2: ("reduce_bucket_size", "overlap_comm"),
    3: (
        "reduce_bucket_size",
        "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
        "stage3_max_reuse_distance",
    ),
}
"""Keys of zero_optimization that our strategies take by the same names."""


def install(tracer: Any) -> None:
    """Wait for DeepSpeed."""

    def change(deepspeed: Any) -> None:
        def initialize(
            args: Any = None,
            model: Any = None,
            optimizer: Any = None,
            model_parameters: Any = None,
            training_data: Any = None,
            lr_scheduler: Any = None,
            config: Any = None,
            config_params: Any = None,
            collate_fn: Any = None,
            **kwargs: Any,
        ) -> Tuple[Any, Any, Any, Any]:
            given = config or config_params or getattr(args, "deepspeed_config", None)
            settings = _configuration(given)
            init_distributed()
            engine = Engine(tracer, model, settings, optimizer, model_parameters, lr_scheduler)
            loader = None
            if training_data is not None:
                loader = torch.utils.data.DataLoader(
                    training_data, engine.train_micro_batch_size_per_gpu(), collate_fn=collate_fn
                )
            return engine, engine.optimizer, loader, engine.lr_scheduler

        deepspeed.initialize = initialize
        deepspeed.init_distributed = init_distributed
        if hasattr(deepspeed, "PipelineModule"):
            deepspeed.PipelineModule = pipeline
        if hasattr(deepspeed, "zero"):
            # Weights would be divided as they are made.
            deepspeed.zero.Init = lambda *args, **kwargs: nullcontext()

    def init_distributed(dist_backend: Any = None, *args: Any, **kwargs: Any) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group(dist_backend or "nccl")

    def pipeline(*args: Any, **kwargs: Any) -> Any:
        tracer.division.cannot("it divides its model into the stages of DeepSpeed's pipeline")
        raise RuntimeError("a pipeline's stages are on other ranks, which a trace does not have")

    AfterImport({"deepspeed": change}).install()


def _configuration(given: Any) -> Mapping[str, Any]:
    if isinstance(given, (str, os.PathLike)):
        with open(given, encoding="utf-8") as file:
            given = json.load(file)
    return given if isinstance(given, Mapping) else {}


def strategy_of(settings: Mapping[str, Any]) -> Tuple[str, Dict[str, str], bool]:
    """Name and options of the strategy, and whether something is kept on the CPU; stage 0 is DDP."""
    zero = settings.get("zero_optimization") or {}
    stage = int(zero.get("stage") or 0)
    offload = any(
        (zero.get(key) or {}).get("device", "none") != "none"
        for key in ("offload_optimizer", "offload_param")
    )
    if stage not in _OPTIONS:
        return "ddp", {}, offload
    # DeepSpeed's default differs from stage to stage; "auto" is for a library that has replaced it by now.
    found = {key: zero[key] for key in _OPTIONS[stage] if zero.get(key) not in (None, "auto")}
    words = {
        key: ("yes" if value else "no") if isinstance(value, bool) else str(int(value))
        for key, value in found.items()
    }
    return f"zero{stage}", words, offload


class Engine(nn.Module):
    """What `deepspeed.initialize` returns."""

    def __init__(
        self,
        tracer: Any,
        model: nn.Module,
        settings: Mapping[str, Any],
        optimizer: Any,
        parameters: Any,
        lr_scheduler: Any,
    ) -> None:
        super().__init__()
        self._settings = settings
        name, options, offload = strategy_of(settings)
        tracer.division.whole(name, **options)
        if offload:
            tracer.note("DeepSpeed's offload to the CPU is not counted: with it each GPU needs less")
        self._half = any((settings.get(key) or {}).get("enabled") is True for key in ("bf16", "fp16"))
        model = model.to(torch.bfloat16) if self._half else model
        self.module = model.cuda()
        self.optimizer = _optimizer(tracer, settings, optimizer, parameters or model.parameters())
        self.lr_scheduler = lr_scheduler(self.optimizer) if callable(lr_scheduler) else lr_scheduler
        self.device = torch.device("cuda", 0)
        self.global_rank = self.local_rank = 0
        self.global_steps = self.micro_steps = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's."""

        def cast(value: Any) -> Any:
            whole = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.to(torch.bfloat16) if self._half and whole else value

        args, kwargs = pytree.tree_map(cast, (args, kwargs))
        return self.module(*args, **kwargs)

    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        """The backward pass of a micro-batch."""
        (loss / self.gradient_accumulation_steps()).backward()
        return loss

    def step(self, *args: Any, **kwargs: Any) -> None:
        """The optimizer's step, after the last micro-batch."""
        self.micro_steps += 1
        if self.micro_steps % self.gradient_accumulation_steps():
            return
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.global_steps += 1
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next step is the optimizer's."""
        return (self.micro_steps + 1) % self.gradient_accumulation_steps() == 0

    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of a step."""
        return self._number("gradient_accumulation_steps") or 1

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples of one."""
        import torch.distributed as dist

        ranks = dist.get_world_size() * self.gradient_accumulation_steps()
        whole = self._number("train_batch_size")
        return self._number("train_micro_batch_size_per_gpu") or max(1, (whole or 1) // ranks)

    def _number(self, key: str) -> Optional[int]:
        value = self._settings.get(key)
        return value if isinstance(value, int) else None

    def zero_optimization_stage(self) -> int:
        """The stage of ZeRO."""
        return int((self._settings.get("zero_optimization") or {}).get("stage") or 0)

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> bool:
        """Each rank writes its own part."""
        return True

    save_16bit_model = save_checkpoint

    def get_global_grad_norm(self) -> Any:
        """Of all ranks."""
        return torch.ones(()).to("cuda")

    def get_lr(self) -> Any:
        """Of every group of parameters."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


def _optimizer(tracer: Any, settings: Mapping[str, Any], given: Any, parameters: Any) -> Any:
    """The script's own, else the configuration's."""
    if given is not None:
        return given(parameters) if callable(given) and not hasattr(given, "step") else given
    named = settings.get("optimizer") or {}
    name = str(named.get("type", "AdamW"))
    kind = {one.lower(): getattr(torch.optim, one) for one in ("Adam", "AdamW", "SGD", "Adagrad")}.get(
        name.lower()
    )
    if kind is None:
        tracer.note(f"DeepSpeed's optimizer {name} is counted as AdamW")
        kind = torch.optim.AdamW
    rate = (named.get("params") or {}).get("lr", 1e-3)
    return kind(parameters, lr=rate if isinstance(rate, float) else 1e-3)
