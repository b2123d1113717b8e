"""Run a command's body and turn what goes wrong into a message and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from typing import Callable

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


def _write_no_more() -> None:
    """Flushing at exit must not fail either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
