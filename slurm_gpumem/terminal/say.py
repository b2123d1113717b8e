"""Messages for people, on stderr."""

from __future__ import annotations

import sys

from slurm_gpumem.text import printable


def say(message: str) -> None:
    """Print a message, with its later lines indented under the first."""
    # File names and values of users stand in messages; none of them may steer the terminal.
    first, *rest = map(printable, message.split("\n"))
    lines = [f"gpumem: {first}", *(f"        {line.strip()}" for line in rest)]
    print("\n".join(lines), file=sys.stderr)
