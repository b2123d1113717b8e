"""Messages for people, on stderr."""

from __future__ import annotations

import os
import sys
from typing import Iterator

from slurm_gpumem.text import printable, wrapped

_PREFIX = "gpumem: "
_LONGEST = 110
WIDTH = _LONGEST - len(_PREFIX)
"""What a line of a message may take, on the widest terminal."""


def say(message: str) -> None:
    """Print a message, with its later lines indented under the first.

    Lines are broken for a terminal only: whoever reads a pipe or a log looks for whole sentences.
    """
    # File names and values of users stand in messages; none of them may steer the terminal.
    lines = [line for text in message.split("\n") for line in _fitted(printable(text.strip()))]
    print(_PREFIX + f"\n{' ' * len(_PREFIX)}".join(lines), file=sys.stderr)


def _fitted(text: str) -> Iterator[str]:
    if not sys.stderr.isatty():
        yield text
        return
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        columns = 0
    # A terminal that says nothing of its size (0) is taken for a wide one.
    yield from wrapped(text, min(columns or _LONGEST, _LONGEST) - len(_PREFIX))
