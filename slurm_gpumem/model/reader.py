"""Open a summary: a path or the text itself, with a clear error for everything that is not one."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Union

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.model.detect import parse
from slurm_gpumem.model.types import ModelSummary

MAX_BYTES = 16 * 1024 * 1024
_HOW = "Make one with torchinfo.summary(model, input_size=(1, 3, 224, 224), depth=20)."


def read_summary(source: Union[str, os.PathLike[str]]) -> ModelSummary:
    """Parse a summary given as a path, or as the text itself when it has a line break."""
    if isinstance(source, str) and "\n" in source:
        return parse(source, origin="summary text")
    path = Path(source)
    return parse(_read_text(path), origin=str(path))


def _read_text(path: Path) -> str:
    try:
        # O_NONBLOCK so that a FIFO cannot hang us; the type is checked on the open file.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise SummaryError(f"{path}: no such file. {_HOW}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SummaryError(f"{path}: cannot be opened: {reason}") from None
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        kind = "a directory" if stat.S_ISDIR(mode) else "no regular file"
        raise SummaryError(f"{path}: is {kind}; give the file with the summary's text.")
    with os.fdopen(fd, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise SummaryError(
            f"{path}: larger than {MAX_BYTES // 2**20} MiB; a summary is a few hundred lines. {_HOW}"
        )
    if not data.strip():
        raise SummaryError(f"{path}: is empty. {_HOW}")
    if b"\0" in data[:65536]:
        raise SummaryError(f"{path}: is a binary file, not the text of a model summary. {_HOW}")
    return data.decode("utf-8", errors="replace")
