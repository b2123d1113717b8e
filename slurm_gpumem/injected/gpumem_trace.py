"""The tracer in a Python of a traced command: which files it reads, and the package once torch is there.

Standard library only: it runs in the user's own environment, which need not have this package.
"""

import atexit
import importlib.util
import os
import sys
import time

_MOST_FILES = 5000


def begin():
    """At the start of Python."""
    folder = os.path.join(os.environ["GPUMEM_TRACE_PACKAGE"], "slurm_gpumem", "tracing")
    spec = importlib.util.spec_from_file_location(
        "slurm_gpumem.tracing.own_code", os.path.join(folder, "own_code.py")
    )
    own_code = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own_code)
    own_code.begin()
    files_read = sys.gpumem_files_read = _FilesRead(own_code.package_folders)
    sys.addaudithook(files_read.hear)
    atexit.register(files_read.write)


def before_torch():
    """Of processes that train together the first is traced; the others would only wait for it."""
    ranks = [os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK")]
    while any(rank.isdigit() and int(rank) > 0 for rank in ranks):
        time.sleep(3600)


def install(torch):
    """Right after torch's import."""
    folder = os.path.join(os.environ["GPUMEM_TRACE_PACKAGE"], "slurm_gpumem")
    spec = importlib.util.spec_from_file_location(
        "slurm_gpumem", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules["slurm_gpumem"] = package
    spec.loader.exec_module(package)
    from slurm_gpumem.tracing.script.tracer import install as install_tracer

    install_tracer()


class _FilesRead:
    """Which files this process reads: a later trace is not needed while they are the same."""

    def __init__(self, package_folders):
        self.package_folders = package_folders
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
        }.union(self.package_folders())
        modules = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        found = {os.path.abspath(path) for path in modules if type(path) is str} | self.opened
        ours = os.path.join(os.environ["GPUMEM_TRACE_PACKAGE"], "slurm_gpumem")
        skipped = (ours, os.environ["GPUMEM_TRACE_DIR"])
        known = tuple(path + os.sep for path in (*installed, os.path.dirname(os.__file__), *skipped))
        own = [path for path in found if not path.startswith(known) and "__pycache__" not in path]
        path = os.path.join(os.environ["GPUMEM_TRACE_DIR"], f"files-{os.getpid()}.json")
        with open(path, "w") as file:
            json.dump({"files": sorted({*own, sys.executable}), "packages": sorted(installed)}, file)
