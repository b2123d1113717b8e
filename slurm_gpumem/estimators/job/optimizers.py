"""What each optimizer keeps per parameter, and what its step needs for a moment.

PyTorch's own optimizers take the `foreach` implementation on CUDA: one operation over all
parameters at once, whose results exist for all parameters at once.
"""

from __future__ import annotations

from typing import Dict, NamedTuple


class OptimizerRule(NamedTuple):
    """An optimizer's memory, in copies of the trainable parameters."""

    title: str
    """Its name as people write it."""
    states: int
    """Copies that stay from the first step on."""
    temporaries: int
    """Further copies at the peak of the foreach step."""
    note: str = ""
    by_pytorch: bool = True
    """Whether it is one of torch.optim's since 1.13, which follow its `foreach` default."""


OPTIMIZER_RULES: Dict[str, OptimizerRule] = {
    "adam": OptimizerRule("Adam", states=2, temporaries=1),
    "adamw": OptimizerRule("AdamW", states=2, temporaries=1),
    "sgd": OptimizerRule("SGD", states=0, temporaries=0),
    "sgd-momentum": OptimizerRule("SGD with momentum", states=1, temporaries=0),
    "rmsprop": OptimizerRule("RMSprop", states=1, temporaries=1, note="without momentum, not centered"),
    "adagrad": OptimizerRule("Adagrad", states=1, temporaries=2),
    "lion": OptimizerRule(
        "Lion", states=1, temporaries=1, note="not PyTorch's own; one state is kept", by_pytorch=False
    ),
    "adafactor": OptimizerRule(
        "Adafactor",
        states=0,
        temporaries=1,
        note="its factored states are too small to count",
        by_pytorch=False,
    ),
}
