"""Loaded at the start of every Python of a traced command; costs nothing until torch is imported.

Standard library only: it runs in the user's own environment, which need not have this package.
"""

import importlib.util
import os
import sys
import time

_HERE = os.path.dirname(os.path.abspath(__file__))
_MOST_FILES = 5000


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
        _wait_unless_first()
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


def _wait_unless_first():
    """Of processes that train together the first is traced; the others would only wait for it."""
    ranks = [os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK")]
    while any(rank.isdigit() and int(rank) > 0 for rank in ranks):
        time.sleep(3600)


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


class _FilesRead:
    """Which files this process reads: a later trace is not needed while they are the same."""

    def __init__(self):
        self.opened = set()

    def hear(self, event, args):
        if event != "open" or type(args[0]) is not str or args[2] & (os.O_WRONLY | os.O_RDWR):
            return
        if len(self.opened) < _MOST_FILES and not args[0].startswith(("/proc/", "/sys/", "/dev/")):
            self.opened.add(os.path.abspath(args[0]))

    def write(self):
        import json

        installed = {
            path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")
        }
        modules = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        found = {os.path.abspath(path) for path in modules if type(path) is str} | self.opened
        ours = os.path.join(os.environ["GPUMEM_TRACE_PACKAGE"], "slurm_gpumem")
        skipped = (ours, os.environ["GPUMEM_TRACE_DIR"])
        known = tuple(path + os.sep for path in (*installed, os.path.dirname(os.__file__), *skipped))
        own = [path for path in found if not path.startswith(known) and "__pycache__" not in path]
        path = os.path.join(os.environ["GPUMEM_TRACE_DIR"], f"files-{os.getpid()}.json")
        with open(path, "w") as file:
            json.dump({"files": sorted({*own, sys.executable}), "packages": sorted(installed)}, file)


if os.environ.get("GPUMEM_TRACE_DIR"):
    import atexit

    sys.meta_path.insert(0, _AfterTorch())
    files_read = sys.gpumem_files_read = _FilesRead()
    sys.addaudithook(files_read.hear)
    atexit.register(files_read.write)
_other_sitecustomize()
