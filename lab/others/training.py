"""A measured job's training, built the same way for every estimator that runs its code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, Mapping

import torch
from torch import Tensor, nn

from lab.networks.build import build_model, move
from lab.networks.tasks import Batch, Feed, task_named
from lab.networks.train import optimizer_over
from lab.score.trace_rows import entry_of

Row = Mapping[str, Any]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Training:
    """A model, its optimizer, and what makes a batch and takes the loss."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    make: Callable[[], Batch]
    loss_of: Callable[[Any, Any], Tensor]

    def step(self) -> None:
        """One step in the order of the measured loop."""
        batch = self.make()
        self.optimizer.zero_grad()
        loss = self.loss_of(self.model(*batch.args, **batch.kwargs), batch.target)
        loss.backward()
        self.optimizer.step()


def built(row: Row) -> nn.Module:
    """The row's model on the CPU."""
    return move(build_model(entry_of(row)), CPU, torch.float32)


def training_of(row: Row, model: nn.Module, *, foreach: bool = True) -> Training:
    """The row's training of this model. `foreach`: the optimizer as it is by default on a GPU."""
    make, loss_of = task_named(row["task"])
    feed = Feed(
        row["batch"], row["size"], CPU, torch.float32, row["task_args"], getattr(model, "config", None)
    )
    optimizer = optimizer_over(row["optimizer"], model.parameters())
    for group in optimizer.param_groups:
        group["foreach"] = foreach
    return Training(model, optimizer, lambda: make(feed), loss_of)


def as_fake(model: nn.Module, mode: Any) -> nn.Module:
    """The model with its weights and buffers in fake tensors; what was shared stays shared."""
    made: Dict[int, Any] = {}

    def fake(tensor: Tensor) -> Any:
        if id(tensor) not in made:
            copy = mode.from_tensor(tensor.detach())
            weight = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(copy, tensor.requires_grad) if weight else copy
        return made[id(tensor)]

    for module in model.modules():
        for kept in (module._parameters, module._buffers):
            for name, tensor in kept.items():
                kept[name] = None if tensor is None else fake(tensor)
    return model
