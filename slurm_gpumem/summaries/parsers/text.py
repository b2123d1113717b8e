"""Clean a summary's text of what terminals, editors and loggers add, keeping its line numbers."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional

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


# Find the tables in a text: where each begins, where its rows end, where its totals end.


class Table(NamedTuple):
    """One table; numbers are indexes into the lines."""

    header: str
    """Its line of titles; empty when that is lost."""
    first: int
    """First line after the titles."""
    stop: int
    """First line that is no row any more."""
    end: int
    """Where the text about this table ends: the next table or the end of the file."""
    closed: bool
    """Whether a rule or totals follow the rows; otherwise the table was cut off."""


def find_headers(lines: List[str]) -> List[int]:
    """Return the indexes of all lines of titles."""
    found = [number for title in TITLES for number, line in enumerate(lines) if title in line]
    return sorted(set(found)) if len(TITLES) > 1 else found


def bound_table(lines: List[str], header: int, end: int) -> Table:
    """Find the end of the rows of the table whose titles are `lines[header]`."""
    first = header + 1
    if first + 1 < end and is_rule(lines[first + 1], "=") and not lines[first].strip():
        first += 1  # a blank line between the titles and their rule
    if first < end and is_rule(lines[first], "=-"):
        first += 1
    stop, closed = find_stop(lines, first, end)
    return Table(lines[header], first, stop, end, closed)


def find_stop(lines: List[str], first: int, end: int) -> tuple[int, bool]:
    """Look for the rule or the totals that close the rows beginning at `first`."""
    for number in range(first, end):
        line = lines[number]
        if ("====" in line and is_rule(line, "=")) or "Total params" in line:
            return number, True
    return end, False


def is_rule(line: str, characters: str) -> bool:
    """Whether the line is drawn with nothing but these characters."""
    stripped = line.strip()
    return len(stripped) >= 8 and not stripped.strip(characters)
