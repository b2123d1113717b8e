"""What a command prints: all of it is read, and only its end is kept."""

from __future__ import annotations

import os
import threading
from typing import Optional

_KEPT = 16384


class Output:
    """A pipe for a command's output, and whoever empties it; no file on any disk grows with it."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self._last = b""
        self._reader: Optional[threading.Thread] = None

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._reader is None:
            os.close(self.write_end)
            os.close(self._read_end)

    def listen(self) -> None:
        """Once the command has been started: it ends when all its processes have."""
        os.close(self.write_end)
        self._reader = threading.Thread(target=self._empty, daemon=True)
        self._reader.start()

    def _empty(self) -> None:
        with open(self._read_end, "rb", buffering=0) as pipe:
            while True:
                data = pipe.read(1 << 16)
                if not data:
                    return
                self._last = (self._last + data)[-_KEPT:]

    def tail(self, lines: int) -> str:
        """The last lines, printable; called when the command has ended."""
        if self._reader is not None:
            self._reader.join(timeout=1.0)  # a process that nobody can end may hold the pipe
        text = self._last.decode(errors="replace")
        shown = ["".join(c if c.isprintable() else "?" for c in line) for line in text.splitlines()]
        return "\n".join(shown[-lines:])
