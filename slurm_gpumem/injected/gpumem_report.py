"""In a job: how much GPU memory PyTorch reserved in this process, left in a file for the job's task epilog.

A file begins when CUDA does and is complete when Python ends, so a process that ends otherwise (os._exit, a
signal, exec) leaves one that says so. Standard library only, from Python 3.6 on. It must not fail, hang or
speak: nothing of it is the job's business. So os._exit is not replaced: a program may call it because CUDA
hangs, and asking PyTorch's allocator would hang as well.
"""

import atexit
import json
import os
import time

VERSION = 1
"""Of these files; recovery/process_reports.py reads them."""
_OPEN = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def install(torch):
    """Right after torch's import; nothing more happens until CUDA is used."""
    try:
        report = _Report(torch, os.environ["GPUMEM_REPORT_DIR"])
        # Called when CUDA is initialized, in the process in which it is: a forked child has its own.
        torch.cuda._lazy_call(report.begin)
    except Exception:  # noqa: BLE001 - a PyTorch that is built otherwise reports nothing
        return


class _Report:
    """What this process has to say."""

    def __init__(self, torch, folder):
        self.torch, self.folder = torch, folder
        self.path = ""
        self.process = 0
        self.began = 0.0

    def begin(self):
        """CUDA has been initialized."""
        try:
            self.process, self.began = os.getpid(), time.time()
            # Processes of several containers may have the same number.
            name = f"{self.process}-{self.began * 1e6:.0f}.json"
            self.path = os.path.join(self.folder, name)
            self._write({"version": VERSION})
            atexit.register(self.end)
        except Exception:  # noqa: BLE001 - PyTorch would pass it on to the job
            self.path = ""

    def end(self):
        """Python ends."""
        try:
            # A forked child's copy: CUDA was its parent's.
            if self.path and self.process == os.getpid():
                self._write(self._figures())
        except Exception:  # noqa: BLE001 - the file stays unfinished, which is an answer
            return

    def _figures(self):
        cuda = self.torch.cuda
        sizes = [(cuda.max_memory_reserved(n), cuda.memory_reserved(n)) for n in range(cuda.device_count())]
        version = str(self.torch.__version__)
        if "+" not in version and self.torch.version.cuda:
            version += "+cu" + self.torch.version.cuda.replace(".", "")
        return {
            "version": VERSION,
            "began": self.began,
            "ended": time.time(),
            "torch": version,
            "loading": os.environ.get("CUDA_MODULE_LOADING", ""),
            "devices": [pair for pair in sizes if pair[0]],
        }

    def _write(self, table):
        handle = os.open(self.path, _OPEN, 0o600)
        try:
            os.write(handle, json.dumps(table).encode())
        finally:
            os.close(handle)
