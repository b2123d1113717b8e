"""Find out which tool wrote a summary and hand the text to its parser."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import List, Optional

from slurm_gpumem.summaries.own_mark import is_own
from slurm_gpumem.summaries.tables import Table, bound_table, find_headers, find_stop
from slurm_gpumem.summaries.text import clean_lines, strip_prefix
from slurm_gpumem.summaries.types import UNKNOWN_KIND, ModelSummary

_SAMPLE = 60
_SHAPE = r"\s+\[*(?:-1|[0-9]+)(?:, |\])"
_NUMBERED_ROW = rf".{{0,200}}?\b[A-Za-z_]\w*-[0-9]+{_SHAPE}"
_BOXED_ROW = r".{0,200}?│ .{0,200}\([A-Z]\w*[)…] *│ [\[(]*(?:None|[0-9])"
_TREE_ROW = r".{0,200}?(?:[├└]─|[|+] )[A-Za-z_]\w*.{0,200}: [0-9]+-[0-9]+\s"


def parse(text: str, *, origin: str) -> ModelSummary:
    """Parse the text of any known summary format; `origin` names it in messages.

    Of several summaries the last is taken: who prints a model twice has changed it in between.
    """
    if is_own(text):
        from slurm_gpumem.summaries.own import parse_own

        return parse_own(text, origin=origin)
    lines = clean_lines(text)
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
    summary = _parse_headless(lines) or _parse_printed(lines)
    if summary is not None:
        return summary
    from slurm_gpumem.summaries.refuse import refuse

    raise refuse(lines, origin)


def _parse_table(lines: List[str], table: Table) -> Optional[ModelSummary]:
    sample = lines[table.first : min(table.stop, table.first + _SAMPLE)]
    if "┃" in table.header or any("(None" in line for line in sample):
        from slurm_gpumem.summaries import keras

        summary = keras.parse(lines, table)
    elif "depth-idx" not in table.header and any(re.match(_NUMBERED_ROW, line) for line in sample):
        from slurm_gpumem.summaries import torchsummary

        summary = torchsummary.parse(lines, table)
    else:
        from slurm_gpumem.summaries import torchinfo

        summary = torchinfo.parse(lines, table)
    return summary if _has_layers(summary) else None


def _has_layers(summary: ModelSummary) -> bool:
    return any(layer.kind != UNKNOWN_KIND for layer in summary.layers)


def _parse_headless(lines: List[str]) -> Optional[ModelSummary]:
    """Read a table whose beginning is cut off, from the first line that looks like a row."""
    for number, line in enumerate(lines):
        if ("[" in line or "─" in line or "│" in line) and _looks_like_row(line):
            stop, closed = find_stop(lines, number, len(lines))
            summary = _parse_table(lines, Table("", number, stop, len(lines), closed))
            if summary is None:
                return None
            note = f"the beginning of the table is cut off before line {number + 1}: layers may be missing"
            return replace(summary, warnings=(note, *summary.warnings), complete=False)
    return None


def _looks_like_row(line: str) -> bool:
    return any(re.match(row, line) for row in (_NUMBERED_ROW, _TREE_ROW, _BOXED_ROW))


def _parse_printed(lines: List[str]) -> Optional[ModelSummary]:
    if not any("(" in line for line in lines):
        return None
    from slurm_gpumem.summaries import printed

    starts = printed.find_starts(lines)
    if not starts:
        return None
    summary = printed.parse(lines, starts[-1])
    if not _has_layers(summary):
        return None
    return _mention_others(summary, [start + 1 for start in starts[:-1]], starts[-1] + 1)


def _mention_others(summary: ModelSummary, others: List[int], used: int) -> ModelSummary:
    if not others:
        return summary
    shown = ", ".join(str(line) for line in others[-5:])
    note = f"{len(others) + 1} summaries in one text (also at line {shown}); using the one at line {used}"
    return replace(summary, warnings=(note, *summary.warnings))
