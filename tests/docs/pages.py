"""A page of the documentation as what is run for it: screens, files, and commands that readers do not see.

A screen is a fenced block with lines that begin with "$ ". A command without output is run, and what it
prints is not compared. Comments in the page's source, which browsers do not show, say what else is needed:

    <!-- not run: REASON -->     the next screen is left as it is
    <!-- needs: MODULE ... -->   the next screen is left as it is where Python has no such module
    <!-- slow -->                the next screen is run only with --slow
    <!-- file: NAME -->          the next block is written to this file
    <!-- before: COMMAND -->     run, and not shown
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence, Tuple, Union

_MARKER = re.compile(r"<!-- (?:(not run|needs|file|before): (.+?)|(slow)) -->")
_FENCE = "```"
_PROMPT = "$ "


@dataclass(frozen=True)
class Step:
    """A command and the lines that the page shows below it."""

    command: str
    shown: Tuple[str, ...]
    first_line: int
    """Index in the page of the first line below the command."""


@dataclass(frozen=True)
class Screen:
    """One fenced block of commands with their output."""

    line: int
    """Number of its first line in the page, from 1."""
    steps: Tuple[Step, ...]
    not_run: str = ""
    needs: Tuple[str, ...] = ()
    slow: bool = False


@dataclass(frozen=True)
class File:
    """A block that is written to a file."""

    name: str
    text: str


@dataclass(frozen=True)
class Before:
    """A command that readers do not see."""

    command: str


Part = Union[Screen, File, Before]


def read_page(text: str) -> List[Part]:
    """What is to be done for a page, in its order."""
    parts: List[Part] = []
    lines = text.split("\n")
    markers: Dict[str, str] = {}
    at = 0
    while at < len(lines):
        marker = _MARKER.fullmatch(lines[at].strip())
        if marker and marker[1] == "before":
            parts.append(Before(marker[2]))
        elif marker:
            markers[marker[1] or marker[3]] = marker[2] or ""
        elif lines[at].startswith(_FENCE):
            end = next(n for n in range(at + 1, len(lines)) if lines[n].startswith(_FENCE))
            part = _block(lines, at + 1, end, markers)
            if part is not None:
                parts.append(part)
            markers, at = {}, end
        elif lines[at].strip():
            markers = {}
        at += 1
    return parts


def _block(lines: Sequence[str], start: int, end: int, markers: Dict[str, str]) -> Optional[Part]:
    if "file" in markers:
        return File(markers["file"], "\n".join(lines[start:end]) + "\n")
    prompts = [n for n in range(start, end) if lines[n].startswith(_PROMPT)]
    if not prompts or lines[start - 1] != _FENCE:
        return None
    steps = []
    for at, after in zip(prompts, [*prompts[1:], end]):
        # A command goes on after a backslash.
        first = next(n for n in range(at, after) if not lines[n].endswith("\\")) + 1
        command = "\n".join([lines[at][len(_PROMPT) :], *lines[at + 1 : first]])
        steps.append(Step(command, tuple(lines[first:after]), first))
    return Screen(
        start + 1,
        tuple(steps),
        not_run=markers.get("not run", ""),
        needs=tuple(markers.get("needs", "").split()),
        slow="slow" in markers,
    )


def with_output(text: str, found: Sequence[Tuple[Step, Sequence[str]]]) -> str:
    """The page with these lines below these commands; blank lines after a command's output are kept."""
    lines = text.split("\n")
    for step, output in sorted(found, key=lambda pair: -pair[0].first_line):
        blank = len(step.shown) - len(trimmed(step.shown))
        lines[step.first_line : step.first_line + len(step.shown)] = [*output, *[""] * blank]
    return "\n".join(lines)


def trimmed(lines: Sequence[str]) -> List[str]:
    """Lines without blanks at their ends, and without blank lines at the end."""
    found = [line.rstrip() for line in lines]
    while found and not found[-1]:
        found.pop()
    return found


_VARY = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "DURATION"),
    (re.compile(r"[\d.]+ GPU-(?:minutes|hours) used in [\d.]+"), "N GPU-minutes used in N"),
    (re.compile(r"[\d.]+ (of \d+ CPUs busy, at most) [\d.]+"), r"N \1 N"),
    (re.compile(r"earlier runs used [\d.]+"), "earlier runs used N"),
    (re.compile(r"\bin [\d.]+ s\b"), "in N s"),
    (re.compile(r"\bfp=\w+"), "fp=KEY"),
    (re.compile(r"read [\d.]+ ms, estimated [\d.]+ ms"), "read N ms, estimated N ms"),
    # How memory went up over the seconds of a run: the scale is compared, the curve is not.
    (re.compile(r"^(\s*[\d.]*[MG]? ┤).*"), r"\1"),
)


def comparable(lines: Sequence[str]) -> List[str]:
    """Lines in which what differs from run to run is replaced by a word."""
    found = trimmed(lines)
    for pattern, word in _VARY:
        found = [pattern.sub(word, line) for line in found]
    return [re.sub(r" +$", "", line) for line in found]


def skipped(screen: Screen, reason: str) -> Screen:
    """The screen, left as it is."""
    return replace(screen, not_run=reason)
