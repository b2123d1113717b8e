"""Run a command's body and turn what goes wrong into a message and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import Callable, NoReturn

from slurm_gpumem.errors import GpumemError
from slurm_gpumem.terminal.say import say

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
    code = run_command(body)
    with suppress(OSError):  # nobody is there to be told
        sys.stderr.flush()
    os._exit(code)


def _write_no_more() -> None:
    """Flushing at exit must not fail either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
