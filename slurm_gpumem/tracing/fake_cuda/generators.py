"""`torch.Generator(device="cuda")`: random numbers of a GPU, which have no values here."""

from __future__ import annotations

from typing import Any, Dict

import torch

_REAL: Any = torch.Generator


class Generator(_REAL):  # type: ignore[misc]
    """One of the CPU, that says where it was asked to be."""

    def __new__(cls, device: Any = "cpu") -> Any:
        made = _REAL.__new__(cls)
        made.on_gpu = type(device) is int or str(device).startswith("cuda")
        return made

    def __init__(self, device: Any = "cpu") -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:
        """Where it was asked to be."""
        return torch.device("cuda", 0) if self.on_gpu else torch.device("cpu")


def without(kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments of a function that draws numbers, without a generator of the GPU."""
    generator = kwargs.get("generator")
    if getattr(generator, "on_gpu", False):
        return {name: value for name, value in kwargs.items() if name != "generator"}
    return kwargs
