"""Where autograd's engine runs: `backward`, and `grad`, which also runs inside of other passes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator

import torch


@contextmanager
def backward_phases(enter: Callable[[str], None], phase: Callable[[], str]) -> Iterator[None]:
    """Inside, derivatives are computed in the phase "backward"; what was there before goes on after it."""
    originals = {name: getattr(torch.autograd, name) for name in ("backward", "grad")}
    for name, real in originals.items():
        setattr(torch.autograd, name, entering(real, enter, phase))
    try:
        yield
    finally:
        for name, real in originals.items():
            setattr(torch.autograd, name, real)


def entering(real: Any, enter: Callable[[str], None], phase: Callable[[], str]) -> Any:
    """The function, in the phase "backward"."""

    def engine(*args: Any, **kwargs: Any) -> Any:
        before = phase()
        if before == "backward":
            return real(*args, **kwargs)
        enter("backward")
        try:
            return real(*args, **kwargs)
        finally:
            enter(before)

    return engine
