"""Open a summary: a path or the text itself, with a clear error for everything that is not one."""

from __future__ import annotations

import os
import re
import stat
from importlib import import_module
from typing import Any, List, Optional, Union

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.summaries.formats import (
    DOCUMENT,
    FORMATS,
    TABLE,
    TREE,
    Format,
    detected,
    is_keras,
    looks_like_row,
)
from slurm_gpumem.summaries.parsers.text import (
    Table,
    bound_table,
    clean_lines,
    find_headers,
    find_stop,
    strip_prefix,
)
from slurm_gpumem.summaries.types import UNKNOWN_KIND, ModelSummary
from slurm_gpumem.units import MIB

# Say what a text is that is no model summary, and how to make one.


HOW = "Make one with: print(torchinfo.summary(model, input_size=(1, 3, 224, 224), depth=20))"

HOW_FROM_CODE = (
    "Make one with: gpumem summarize {file}:build_model --input 3,224,224 --batch-size 128 -o summary.json"
)
PYTHON = "Python code"

_LOOKS = (
    (r"Traceback \(most recent call last\)", "an error traceback"),
    (
        r"#!.*\bpython|import \w|from [\w.]+ import |def \w+\(|class \w+[(:]|@\w|if __name__|\"\"\"|'''",
        PYTHON,
    ),
    (r"#!\s*\S*/(?:env )?(?:ba|z|da|k)?sh\b|#SBATCH", "a shell script"),
    (r"OrderedDict\(|\{'[\w.]+': tensor\(|tensor\(", "a printed state_dict"),
    (r"[{\[]\s*(?:$|[\"{\[])", "JSON"),
    (r"<(?:!DOCTYPE|html|\?xml)", "HTML or XML"),
)
_CHECKPOINTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"\x89HDF", b"GGUF")


def refuse(lines: List[str], origin: str) -> SummaryError:
    """Build the error for a text in which no parser found a model."""
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return SummaryError(f"{origin}: is empty.\n{HOW}")
    what = _looks_like(lines[first])
    if what:
        how = HOW_FROM_CODE.format(file=origin) if what == PYTHON else HOW
        return SummaryError(f"{origin}: line {first + 1} looks like {what}, not a model summary.\n{how}")
    for number, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            return SummaryError(
                f"{origin}: line {number + 1} is an error traceback: the summary was not printed.\n{HOW}"
            )
    if is_keras("", lines):
        return SummaryError(
            f"{origin}: a Keras summary: estimates are for PyTorch. Say what the job needs: --gpu-mem 12G"
        )
    known = ", ".join(row.name for row in FORMATS if row.detect)
    return SummaryError(f"{origin}: not a model summary that we know ({known}).\n{HOW}")


def _looks_like(line: str) -> Optional[str]:
    text = line.strip()[:200]
    for pattern, what in _LOOKS:
        if re.match(pattern, text):
            return what
    return None


def binary_kind(data: bytes) -> str:
    """Name a binary file by its first bytes."""
    if data.startswith(_CHECKPOINTS) or data[8:10] == b'{"':
        return "a checkpoint (the weights, not the summary)"
    return "a binary file, not a model summary"


# Find out which format a summary has (formats.py) and hand the text to its parser.

_SAMPLE_LINES = 60
"""Lines of a table that its format is detected by."""
_START = 200
"""Characters of a document that its format is detected by."""


def parse(text: str, *, origin: str) -> ModelSummary:
    """Parse the text of any known summary format; `origin` names it in messages.

    Of several summaries the last is taken: who prints a model twice has changed it in between. A table is
    preferred to a printed model.
    """
    document = detected(DOCUMENT, "", [text.lstrip("\ufeff \t\r\n")[:_START]])
    if document is not None:
        summary: ModelSummary = _parser(document).parse(text, origin=origin)
        return summary
    lines = clean_lines(text)
    found = _parse_tables(lines) or _parse_headless(lines) or _parse_tree(lines)
    if found is not None:
        return found

    raise refuse(lines, origin)


def _parser(row: Format) -> Any:
    return import_module(f"slurm_gpumem.summaries.parsers.{row.parser}")


def _parse_tables(lines: List[str]) -> Optional[ModelSummary]:
    headers = find_headers(lines)
    for position in range(len(headers) - 1, -1, -1):
        header = headers[position]
        end = headers[position + 1] if position + 1 < len(headers) else len(lines)
        strip_prefix(lines, header, end)
        summary = _parse_table(lines, bound_table(lines, header, end))
        if summary is not None:
            return _mention_others(
                summary, [number + 1 for number in headers if number != header], header + 1
            )
    return None


def _parse_table(lines: List[str], table: Table) -> Optional[ModelSummary]:
    row = detected(TABLE, table.header, lines[table.first : min(table.stop, table.first + _SAMPLE_LINES)])
    if row is None:
        return None
    summary: ModelSummary = _parser(row).parse(lines, table)
    return summary if _has_layers(summary) else None


def _has_layers(summary: ModelSummary) -> bool:
    return any(layer.kind != UNKNOWN_KIND for layer in summary.layers)


def _parse_headless(lines: List[str]) -> Optional[ModelSummary]:
    """Read a table whose beginning is cut off, from the first line that looks like a row."""
    for number, line in enumerate(lines):
        if ("[" in line or "─" in line) and looks_like_row(line):
            stop, closed = find_stop(lines, number, len(lines))
            summary = _parse_table(lines, Table("", number, stop, len(lines), closed))
            if summary is None:
                return None
            note = f"the beginning of the table is cut off before line {number + 1}: layers may be missing"
            return summary._replace(warnings=(note, *summary.warnings), complete=False)
    return None


def _parse_tree(lines: List[str]) -> Optional[ModelSummary]:
    row = detected(TREE, "", lines)
    if row is None:
        return None
    parser = _parser(row)
    starts: List[int] = parser.find_starts(lines)
    if not starts:
        return None
    summary: ModelSummary = parser.parse(lines, starts[-1])
    if not _has_layers(summary):
        return None
    return _mention_others(summary, [start + 1 for start in starts[:-1]], starts[-1] + 1)


def _mention_others(summary: ModelSummary, others: List[int], used: int) -> ModelSummary:
    if not others:
        return summary
    shown = ", ".join(str(line) for line in others[-5:])
    note = f"{len(others) + 1} summaries in one text (also at line {shown}); using the one at line {used}"
    return summary._replace(warnings=(note, *summary.warnings))


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
        reason = getattr(error, "strerror", None) or "no file can have this name"
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
