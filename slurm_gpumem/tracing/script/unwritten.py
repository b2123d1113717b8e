"""Files that a script would have written in rounds that were left out, and reads later.

A model labels picture after picture, one file each, and a later stage trains with all of them; or the weights
of the last epochs are averaged. Where such a file is opened and is not there, it becomes another name of the
last one of its kind that was written: of the same loop, in the same folder, with the same ending.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, Dict, NamedTuple, Tuple

_WRITES = os.O_WRONLY | os.O_RDWR


class _Written(NamedTuple):
    number: int
    path: str


class Unwritten:
    """Files that were written, and those of which more would have been."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._last: Dict[Tuple[str, str], _Written] = {}
        """By their folder and ending."""
        self._some: Dict[Tuple[str, str], str] = {}
        """The same, of loops whose rounds were not all run."""
        self.count = 0
        """Files that were written."""

    def install(self) -> None:
        """Hear of every file that is opened, just before it is."""
        sys.addaudithook(self._hear)

    def wrote(self, path: str) -> None:
        """A file is about to be written."""
        path = os.path.abspath(path)
        self._last[_kind(path)] = _Written(self.count, path)
        self.count += 1

    def left_out(self, since: int) -> None:
        """Rounds are left out of a loop at whose begin this many files had been written."""
        for kind, written in self._last.items():
            if written.number >= since:
                self._some[kind] = written.path

    def _hear(self, event: str, args: Any) -> None:
        if event != "open" or type(args[0]) is not str or self._recorder.off:
            return
        if args[2] & _WRITES:
            if not self._recorder.loading:
                self.wrote(args[0])
        elif self._some:
            path = os.path.abspath(args[0])
            like = self._some.get(_kind(path))
            if like is not None and os.path.exists(like) and not os.path.lexists(path):
                self._recorder.assume("a file of a round that was left out is taken to be like another's")
                with suppress(OSError):  # then the script is told that there is no such file
                    os.link(like, path)


def _kind(path: str) -> Tuple[str, str]:
    return os.path.dirname(path), os.path.splitext(path)[1]
