"""A module `torch` whose CUDA is a few counters, for processes on machines without a GPU."""

from __future__ import annotations

from pathlib import Path

CODE = '''
"""Only what a start-up hook may touch: CUDA's initialization, and the allocator's counters."""

import os
import types

__version__ = "2.6.0+cu124"
version = types.SimpleNamespace(cuda="12.4")


class _Cuda:
    def __init__(self):
        self._queued, self._process = [], None
        self._reserved, self._peak = [0, 0], [0, 0]

    def _lazy_call(self, function):
        self._queued.append(function)

    def init(self):
        if self._process is None:
            self._process = os.getpid()
            for function in self._queued:
                function()

    def hold(self, mib, device=0):
        """What a tensor would do: PyTorch reserves that much in all."""
        self.init()
        self._reserved[device] = mib << 20
        self._peak[device] = max(self._peak[device], mib << 20)

    def device_count(self):
        return 2

    def max_memory_reserved(self, device):
        return self._peak[device]

    def memory_reserved(self, device):
        return self._reserved[device]


cuda = _Cuda()
'''


def write_torch(folder: Path, code: str = CODE) -> Path:
    """The module in this folder, which belongs on the path of Python."""
    folder.mkdir(exist_ok=True)
    (folder / "torch.py").write_text(code)
    return folder
