"""Clean a summary's text of what terminals, editors and loggers add, keeping its line numbers."""

from __future__ import annotations

import re
from typing import List, Optional

from slurm_gpumem.summaries.formats import TITLES

MAX_LINE = 4000
"""No row of a table is longer; what follows on such a line is not read."""

_RULE = re.compile(r"(.{0,200}?)(?:={8}|-{8}|_{8}|━{4}|┏━|┡━)")


def clean_lines(text: str) -> List[str]:
    """Split into lines; without byte order mark, colours, carriage returns and overlong tails."""
    text = text.lstrip("\ufeff")
    if "\x1b" in text:
        text = re.sub(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])", "", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n")
        if "\n" not in text:
            text = text.replace("\r", "\n")
    lines = text.split("\n")
    if "\r" in text:
        # What a terminal shows of a line that a progress bar has written over.
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    if len(text) > MAX_LINE:
        lines = [line if len(line) <= MAX_LINE else line[:MAX_LINE] for line in lines]
    return lines


def strip_prefix(lines: List[str], header: int, end: int) -> None:
    """Remove, in place, a logger's prefix from the table's header on to `end`, if it has one.

    The rule under the header shows what stands before the table on each line; numbers in it (times, line
    numbers) may change from line to line.
    """
    pattern = _prefix_pattern(lines, header)
    if pattern is None:
        return
    for number in range(header, end):
        match = pattern.match(lines[number])
        if match:
            lines[number] = lines[number][match.end() :]


def _prefix_pattern(lines: List[str], header: int) -> Optional[re.Pattern[str]]:
    if header + 1 < len(lines):
        rule = _RULE.match(lines[header + 1])
        if rule:
            return prefix_pattern(rule[1])
    line = lines[header]
    before = next((line.partition(title)[0] for title in TITLES if title in line), "")
    return prefix_pattern(before.rstrip() + " " * min(1, len(before) - len(before.rstrip())))


def prefix_pattern(prefix: str) -> Optional[re.Pattern[str]]:
    """Compile a pattern for log prefixes like this one; None when it has nothing but space."""
    if not any(char.isalnum() for char in prefix[:200]):
        return None
    kept = prefix[:200].rstrip()
    parts = re.split(r"([0-9]+|\s+)", kept)
    pattern = "".join(
        r"[0-9]+" if part.isdigit() else r"\s*" if part.isspace() else re.escape(part)
        for part in parts
        if part
    )
    return re.compile(pattern + r"\s" * (len(prefix[:200]) - len(kept)))
