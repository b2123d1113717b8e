"""Messages for people, on stderr; a command's errors become one, with an exit code."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import Callable, Iterator, NoReturn

from slurm_gpumem.errors import GpumemError
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


# Run a command's body and turn what goes wrong into a message and an exit code.

_NOT_WRITTEN = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)


def run_command(body: Callable[[], int]) -> int:
    """`body`'s exit code; errors of the user's or the site's become one message on stderr."""
    try:
        try:
            return body()
        finally:
            sys.stdout.flush()
    except GpumemError as error:
        say(str(error))
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) left: nobody to tell.
        _write_no_more()
        return 141
    except OSError as error:
        if error.errno not in _NOT_WRITTEN or error.filename is not None:
            raise
        _write_no_more()
        say(f"standard output: {os.strerror(error.errno)}")
        return 1
    except KeyboardInterrupt:
        return 130


def run_program(body: Callable[[], int]) -> NoReturn:
    """The same as a process of its own, which ends here.

    Python would take every module apart first, a seventh of a short command's time; no command leaves work to
    that: threads are daemons, files and folders are closed where they were opened.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed: what is said goes nowhere, and not into a file that we open
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process
    if sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr] # names that this terminal lacks letters for
    code = run_command(body)
    with suppress(OSError):  # nobody is there to be told
        sys.stderr.flush()
    os._exit(code)


def _write_no_more() -> None:
    """Flushing at exit must not fail either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
