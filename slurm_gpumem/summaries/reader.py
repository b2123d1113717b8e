"""Open a summary: a path or the text itself, with a clear error for everything that is not one."""

from __future__ import annotations

import os
import stat
from typing import Optional, Union

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.summaries.detect import parse
from slurm_gpumem.summaries.refuse import HOW
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import MIB

MAX_BYTES = 16 * MIB
_SAMPLE = 65536
# Longest first: a UTF-32 mark begins like a UTF-16 one.
_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)


def read_summary(source: Union[str, os.PathLike[str]]) -> ModelSummary:
    """Parse a summary given as a path, or as the text itself when it has a line break."""
    if isinstance(source, str) and not source.strip():
        raise SummaryError(f"the summary's text is empty, or its path is.\n{HOW}")
    if isinstance(source, str) and "\n" in source:
        return parse(source, origin="summary text")
    path = os.fspath(source)
    text = _read_text(path)
    summary = parse(text, origin=path)
    name = summary.name or os.path.splitext(os.path.basename(path))[0]
    return summary._replace(name=name, digest=_digest(text))


def _digest(text: str) -> str:
    from slurm_gpumem.digest import name_of  # here, because most submissions need none

    return name_of(text.encode("utf-8", "backslashreplace"))


def _read_text(path: str) -> str:
    try:
        # O_NONBLOCK so that a FIFO cannot hang us; the type is checked on the open file.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise SummaryError(f"{path}: no such file.\n{HOW}") from None
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
            f"{path}: larger than {MAX_BYTES // MIB} MiB; a summary is a few hundred lines.\n{HOW}"
        )
    if not data.strip():
        raise SummaryError(f"{path}: is empty.\n{HOW}")
    return _decode(data, path)


def _decode(data: bytes, path: str) -> str:
    """Decode UTF-8, or UTF-16 as PowerShell's ">" writes it."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding, errors="replace")
    if b"\0" in data[:_SAMPLE]:
        guess = _guess_utf16(data[:_SAMPLE])
        if guess is None:
            from slurm_gpumem.summaries.refuse import binary_kind

            raise SummaryError(f"{path}: is {binary_kind(data)}.\n{HOW}")
        return data.decode(guess, errors="replace")
    return data.decode("utf-8", errors="replace")


def _guess_utf16(sample: bytes) -> Optional[str]:
    """UTF-16 without a mark: nearly every second byte of a table is zero."""
    for offset, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        high, low = sample[offset::2], sample[1 - offset :: 2]
        # Some of a tree's characters have a zero for their lower byte.
        if high.count(0) > 0.8 * len(high) and low.count(0) < 0.2 * len(low):
            return encoding
    return None
