"""Run a command's body and turn what goes wrong into a message and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Callable

from slurm_gpumem.errors import GpumemError
from slurm_gpumem.terminal.say import say


def run_command(body: Callable[[], int]) -> int:
    """`body`'s exit code; errors of the user's or the site's become one message on stderr."""
    try:
        code = body()
        sys.stdout.flush()
        return code
    except GpumemError as error:
        say(str(error))
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) left: nobody to tell, and flushing at exit must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
