"""Find out which tool wrote a summary and hand the text to its parser."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import List, Optional

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.model.tables import Table, bound_table, find_headers
from slurm_gpumem.model.text import clean_lines, strip_prefix
from slurm_gpumem.model.types import ModelSummary

_SAMPLE = 40
_NUMBERED_ROW = re.compile(r".{0,200}?[A-Za-z_]\w*-[0-9]+\s+\[")


def parse(text: str, *, origin: str) -> ModelSummary:
    """Parse the text of any known summary format; `origin` names it in messages."""
    lines = clean_lines(text)
    headers = find_headers(lines)
    if not headers:
        raise SummaryError(f"{origin}: not a model summary that we know (torchsummary, torchinfo).")
    header = headers[-1]
    strip_prefix(lines, header, start=header)
    table = bound_table(lines, header, len(lines))
    summary = _parse_table(lines, table)
    if summary is None:
        raise SummaryError(f"{origin}: has a summary's header at line {header + 1} but no layers under it.")
    if len(headers) > 1:
        others = ", ".join(str(number + 1) for number in headers[:-1][-5:])
        note = (
            f"{len(headers)} summaries in one text (also at line {others}); using the last, line {header + 1}"
        )
        summary = replace(summary, warnings=(note, *summary.warnings))
    return summary


def _parse_table(lines: List[str], table: Table) -> Optional[ModelSummary]:
    sample = lines[table.first : min(table.stop, table.first + _SAMPLE)]
    numbered = sum(1 for line in sample if _NUMBERED_ROW.match(line))
    if "depth-idx" in table.header or "var_name" in table.header or not numbered:
        from slurm_gpumem.model import torchinfo

        summary = torchinfo.parse(lines, table)
    else:
        from slurm_gpumem.model import torchsummary

        summary = torchsummary.parse(lines, table)
    return summary if any(layer.kind != "?" for layer in summary.layers) else None
