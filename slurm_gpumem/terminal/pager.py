"""Long texts for people: through a pager on a terminal, as they are in a pipe."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys


def show(text: str) -> None:
    """Print it; on a terminal with $PAGER, or less, which leaves a text that fits on the screen."""
    command = shlex.split(os.environ.get("PAGER", "less"))
    if not sys.stdout.isatty() or not command or shutil.which(command[0]) is None:
        print(text)
        return
    env = {**os.environ, "LESS": os.environ.get("LESS", "FRX"), "LESSCHARSET": "utf-8"}
    pager = subprocess.Popen(command, stdin=subprocess.PIPE, env=env)
    try:
        pager.communicate(f"{text}\n".encode())
    except BrokenPipeError:
        pass  # left before the end
    except KeyboardInterrupt:
        # less keeps the terminal until it is left; without us the shell would read beside it.
        pager.wait()
