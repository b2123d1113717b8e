"""Loaded at the start of every Python of a traced command.

Costs nothing until torch is imported. Standard library only, in words that Python 2.7 understands as well: it
runs in whatever Python the user has. What it starts lies beside it: gpumem_trace.py.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _other_sitecustomize():
    """Run the sitecustomize that this file stands before, if the user has one."""
    for folder in sys.path:
        path = os.path.join(folder or os.curdir, "sitecustomize.py")
        if os.path.abspath(folder or os.curdir) != _HERE and os.path.isfile(path):
            _load("sitecustomize", path)
            return


def _load(name, path):
    """Import a file under this name."""
    if sys.version_info < (3, 5):
        import imp

        return imp.load_source(name, path)
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _AroundTorch(object):
    """Calls the one right before torch's import and the other right after it."""

    def __init__(self, before, after):
        self.before, self.after = before, after
        self.looking = False

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.looking:
            return None
        import importlib.util

        self.before()
        self.looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def then_after(module):
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            self.after(module)

        spec.loader.exec_module = then_after
        return spec


def _beside(name):
    return sys.modules.get(name) or _load(name, os.path.join(_HERE, name + ".py"))


if os.environ.get("GPUMEM_TRACE_DIR"):
    _tracer = _beside("gpumem_trace")
    _tracer.begin()
    sys.meta_path.insert(0, _AroundTorch(_tracer.before_torch, _tracer.install))
_other_sitecustomize()
