"""When autograd's engine is at work: `backward`, and `grad`, which also runs inside of other passes."""

from __future__ import annotations

from typing import Any, Callable


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
