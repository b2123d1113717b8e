"""`gpumem` within the test's process: starting a Python takes longer than most of its answers."""

from __future__ import annotations

import os
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from typing import Mapping, Sequence
from unittest import mock

from slurm_gpumem.cli.gpumem import main


def call_gpumem(args: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What the command would print and end with in a process of this environment."""
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    out = TextIOWrapper(BytesIO(), encoding=encoding, newline="\n")
    err = TextIOWrapper(BytesIO(), encoding=encoding, errors="backslashreplace", newline="\n")
    with mock.patch.dict(os.environ, environment, clear=True), redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(list(args))
        except SystemExit as end:  # argparse
            code = end.code if isinstance(end.code, int) else 1
    return subprocess.CompletedProcess(list(args), code, _text(out), _text(err))


def _text(stream: TextIOWrapper) -> str:
    stream.flush()
    written = stream.buffer
    assert isinstance(written, BytesIO)
    return written.getvalue().decode(stream.encoding)
