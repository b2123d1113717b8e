"""Work that is done when its result is first asked for, so that a run of one test does one test's work."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any, Callable, Optional


class OnDemand(Executor):
    """Takes work as a pool does; what nobody asks for is never done."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return _Asked(lambda: fn(*args, **kwargs))


class _Asked(Future):  # type: ignore[type-arg]
    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def result(self, timeout: Optional[float] = None) -> Any:
        if not self.done():
            try:
                self.set_result(self._work())
            except Exception as error:  # noqa: BLE001  kept for everybody who asks
                self.set_exception(error)
        return super().result(timeout)
