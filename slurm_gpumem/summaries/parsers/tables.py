"""Find the tables in a text: where each begins, where its rows end, where its totals end."""

from __future__ import annotations

from typing import List, NamedTuple

from slurm_gpumem.summaries.formats import TITLES


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
