"""Names of optimizers and precisions as frameworks write them, and ours for the same thing."""

from __future__ import annotations

from typing import Dict, Optional

from slurm_gpumem.errors import UnknownNameError

_OPTIMIZERS: Dict[str, str] = {
    # Hugging Face's TrainingArguments.optim
    "adamw-torch": "adamw",
    "adamw-torch-fused": "adamw",
    "adamw-hf": "adamw",
    "adamw-apex-fused": "adamw",
    # 8 bits or paged to the host: less than AdamW takes, so AdamW is an upper bound
    "adamw-8bit": "adamw",
    "adamw-bnb-8bit": "adamw",
    "adam-8bit": "adam",
    "adam8bit": "adam",
    "adamw8bit": "adamw",
    "paged-adamw": "adamw",
    "paged-adamw-8bit": "adamw",
    "paged-adamw-32bit": "adamw",
    "pagedadamw8bit": "adamw",
    "lion-8bit": "lion",
    "lion-32bit": "lion",
    "paged-lion-8bit": "lion",
    "paged-lion-32bit": "lion",
    # DeepSpeed, apex, Keras and plain words
    "fusedadam": "adam",
    "fused-adam": "adam",
    "momentum": "sgd-momentum",
    "sgd-nesterov": "sgd-momentum",
    "nesterov": "sgd-momentum",
    "rmsprop-bnb": "rmsprop",
    "rmsprop-bnb-8bit": "rmsprop",
    "rmsprop-bnb-32bit": "rmsprop",
}
_PRECISIONS: Dict[str, str] = {
    # Lightning's Trainer(precision=...)
    "16-mixed": "amp-fp16",
    "bf16-mixed": "amp-bf16",
    "bf16-true": "bf16",
    "32-true": "fp32",
    "16": "amp-fp16",
    "32": "fp32",
    # transformers and accelerate: fp16 is mixed precision, the weights stay fp32
    "fp16": "amp-fp16",
    "fp16-mixed": "amp-fp16",
    "no": "fp32",
    # Keras' policies, PyTorch's types, plain words
    "mixed-float16": "amp-fp16",
    "mixed-bfloat16": "amp-bf16",
    "float32": "fp32",
    "bfloat16": "bf16",
    "amp": "amp-fp16",
    "fp16-amp": "amp-fp16",
    "bf16-amp": "amp-bf16",
}
_ALIASES = {"optimizer": _OPTIMIZERS, "precision": _PRECISIONS}
NOT_MODELLED = frozenset(
    ("muon", "adan", "sophia", "sophia-g", "lamb", "lars", "shampoo", "soap", "came", "galore-adamw",
     "prodigy", "nadam", "radam", "adamax", "adadelta", "lbfgs", "schedule-free-adamw", "dadaptation")
)  # fmt: skip
"""Optimizers that exist and whose memory no rule of ours gives; no other name is near them in meaning."""
PURE_FP16 = frozenset(("16-true", "fp16-true", "float16", "half", "pure-fp16"))
"""Weights in fp16, which no rule of ours gives either: with "fp16" frameworks mean mixed precision."""
_MODULES = ("torch.optim.", "optim.", "transformers.", "bitsandbytes.optim.", "bnb.optim.")

_SHARDED = {
    "ddp": "",
    "fsdp": "FSDP",
    "zero": "ZeRO",
    "deepspeed": "DeepSpeed",
    "tp": "tensor parallelism",
    "pp": "pipeline parallelism",
}
"""Ways to use several GPUs by their names, which others may begin with ("fsdp-grad-op", "zero3,..."): what it
shards the model by; "" for data parallel training, where every GPU holds all of it."""


def sharded(by: str) -> str:
    """Why a training is not estimated, in words."""
    return f"it shards its model over GPUs ({by})"


def sharding(strategy: str) -> str:
    """How a stated strategy shards the model; "" where it does not. UnknownNameError for an unknown one."""
    name = strategy.strip().lower()
    for known, title in _SHARDED.items():
        if name.startswith(known):
            return title
    raise UnknownNameError("strategy", strategy, list(_SHARDED))


def plain_name(text: str, what: str = "") -> str:
    """A name as our tables have it, however it was written: "AdamW", "sgd_momentum", "bf16-mixed".

    `what` is "optimizer" or "precision" where frameworks have other names for the same thing.
    """
    name = text.strip().lower().replace("_", "-")
    if what == "optimizer" and "." in name:
        name = name[max((len(module) for module in _MODULES if name.startswith(module)), default=0) :]
    return _ALIASES.get(what, {}).get(name, name)


def optimizer_remark(text: Optional[str]) -> Optional[str]:
    """What to know of an optimizer that is estimated as a larger one; None for all others."""
    name = plain_name(text or "")
    if not ("8bit" in name or name.startswith("paged")):
        return None
    known = plain_name(name, "optimizer")
    if known == name:
        return None
    return f"{text} is estimated as {known} with states of full size on the GPU, which is an upper bound"
