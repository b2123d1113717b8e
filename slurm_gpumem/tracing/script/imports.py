"""Change a module right after it was imported, and leave it alone where it never is."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any, Callable, Dict, Set


class AfterImport:
    """A finder that calls an action with the module that it waited for."""

    def __init__(self, actions: Dict[str, Callable[[Any], None]]) -> None:
        self._actions = actions
        self._looking: Set[str] = set()

    def install(self) -> None:
        """Wait for the modules; those that are there already are changed now."""
        for name in [name for name in self._actions if name in sys.modules]:
            self._actions.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The module's own spec, with the action behind its loader."""
        if name not in self._actions or name in self._looking:
            return None
        self._looking.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.discard(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def then_change(module: Any) -> None:
            execute(module)
            action = self._actions.pop(name, None)
            if action is not None:
                action(module)

        spec.loader.exec_module = then_change  # type: ignore[method-assign]
        return spec
