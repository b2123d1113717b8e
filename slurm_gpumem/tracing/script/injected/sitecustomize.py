"""Loaded at the start of every Python of a traced command; costs nothing until torch is imported.

Standard library only: it runs in the user's own environment, which need not have this package.
"""

import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _other_sitecustomize():
    """Run the sitecustomize that this file stands before, if the user has one."""
    for folder in sys.path:
        path = os.path.join(folder or os.curdir, "sitecustomize.py")
        if os.path.abspath(folder or os.curdir) != _HERE and os.path.isfile(path):
            spec = importlib.util.spec_from_file_location("sitecustomize", path)
            module = importlib.util.module_from_spec(spec)
            sys.modules["sitecustomize"] = module
            spec.loader.exec_module(module)
            return


class _AfterTorch:
    """Waits for torch's import and installs the tracer right after it."""

    def __init__(self):
        self.looking = False

    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self.looking:
            return None
        self.looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def then_install(module):
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            execute(module)
            _install()

        spec.loader.exec_module = then_install
        return spec


def _install():
    folder = os.path.join(os.environ["GPUMEM_TRACE_PACKAGE"], "slurm_gpumem")
    spec = importlib.util.spec_from_file_location(
        "slurm_gpumem", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules["slurm_gpumem"] = package
    spec.loader.exec_module(package)
    from slurm_gpumem.tracing.script.inside import install

    install()


if os.environ.get("GPUMEM_TRACE_DIR"):
    sys.meta_path.insert(0, _AfterTorch())
_other_sitecustomize()
