"""The strategies by name, and their options: "fsdp", "zero2,reduce_bucket_size=2e8"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Mapping, Tuple

from slurm_gpumem.errors import UnknownNameError, UsageError

DEFAULT = "ddp"
"""What several GPUs mean where nobody names a strategy."""


@dataclass(frozen=True)
class Rule:
    """What a strategy is called, and the options it takes with their defaults."""

    title: str
    options: Mapping[str, str]


_WRAP = {"wrap": "auto"}
_FSDP = {"mixed": "no", "reduce": "fp32", "whole": "no", **_WRAP}
_ZERO = {"reduce_bucket_size": "5e8", "overlap_comm": "no"}
STRATEGIES: Dict[str, Rule] = {
    "ddp": Rule("DDP", {"bucket_cap_mb": "25", "gradient_as_bucket_view": "no"}),
    "fsdp": Rule("FSDP2", _FSDP),
    "fsdp-grad-op": Rule("FSDP2 without resharding after the forward pass", _FSDP),
    "fsdp1": Rule("FSDP1 FULL_SHARD", _FSDP),
    "fsdp1-grad-op": Rule("FSDP1 SHARD_GRAD_OP", _FSDP),
    "zero1": Rule("ZeRO-1", {"reduce_bucket_size": "5e8"}),
    "zero2": Rule("ZeRO-2", _ZERO),
    "zero3": Rule(
        "ZeRO-3",
        {
            "reduce_bucket_size": "5e8",
            "stage3_prefetch_bucket_size": "5e7",
            "stage3_param_persistence_threshold": "1e5",
            "stage3_max_reuse_distance": "1e9",
        },
    ),
    "tp": Rule("tensor parallel", _WRAP),
    "pp": Rule("pipeline parallel", {"micro_batches": "0", **_WRAP}),
}
"""The defaults are PyTorch's and DeepSpeed's own."""
_SWITCHES = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


@dataclass(frozen=True)
class Strategy:
    """A strategy and the options in force."""

    name: str
    options: Mapping[str, str]

    @property
    def title(self) -> str:
        """Its name for people."""
        return STRATEGIES[self.name].title

    def number(self, option: str) -> int:
        """A whole number, which may be written like 5e8."""
        text = self.options[option]
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= 1e15 or value != int(value):
            raise UsageError(f"strategy {self.name}: {option} must be a whole number like 5e8, not {text!r}")
        return int(value)

    @property
    def wider_copy(self) -> bool:
        """Whether ranks keep weights in a wider type than the trace; alone, the model would as well."""
        return self.name.startswith("zero") or self.options.get("mixed", "no") != "no"

    def switch(self, option: str) -> bool:
        """Yes or no."""
        text = self.options[option].lower()
        if text not in _SWITCHES:
            raise UsageError(f"strategy {self.name}: {option} must be yes or no, not {text!r}")
        return _SWITCHES[text]


def parse_strategy(text: str) -> Strategy:
    """Read "NAME" or "NAME,option=value,switch"; errors name what is known."""
    name, *words = [word.strip() for word in text.split(",")]
    name = name.lower()
    if name not in STRATEGIES:
        raise UnknownNameError("strategy", name, list(STRATEGIES))
    known = STRATEGIES[name].options
    options = dict(known)
    for word in words:
        key, equals, value = word.partition("=")
        if key not in known:
            raise UnknownNameError(f"option of strategy {name}", key, list(known))
        options[key] = value if equals else "yes"
    strategy = Strategy(name, options)
    _check(strategy)
    return strategy


def _check(strategy: Strategy) -> None:
    """Read every value once, so that a wrong one is an error before anything is computed."""
    defaults = STRATEGIES[strategy.name].options
    for key, default in defaults.items():
        if default in _SWITCHES:
            strategy.switch(key)
        elif default[:1].isdigit():
            strategy.number(key)
    if "reduce" in defaults and strategy.options["reduce"] not in ("fp32", "bf16"):
        raise UnknownNameError(
            f"reduce of strategy {strategy.name}", strategy.options["reduce"], ["fp32", "bf16"]
        )


def strategy_names() -> Tuple[str, ...]:
    """All of them."""
    return tuple(STRATEGIES)
