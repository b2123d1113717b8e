"""Find out which format a summary has (formats.py) and hand the text to its parser."""

from __future__ import annotations

from importlib import import_module
from typing import Any, List, Optional

from slurm_gpumem.summaries.formats import DOCUMENT, TABLE, TREE, Format, detected, looks_like_row
from slurm_gpumem.summaries.parsers.tables import Table, bound_table, find_headers, find_stop
from slurm_gpumem.summaries.parsers.text import clean_lines, strip_prefix
from slurm_gpumem.summaries.types import UNKNOWN_KIND, ModelSummary

_SAMPLE = 60
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
    from slurm_gpumem.summaries.refuse import refuse

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
    row = detected(TABLE, table.header, lines[table.first : min(table.stop, table.first + _SAMPLE)])
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
