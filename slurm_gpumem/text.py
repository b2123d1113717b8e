"""Texts for people: names that others chose, made harmless and short enough; nouns with their number."""

from __future__ import annotations

from typing import List, Optional, Sequence


def printable(text: str) -> str:
    """Nothing that steers a terminal or turns a line's direction: what cannot be printed becomes "?"."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def clipped(text: str, longest: int) -> str:
    """The same, at most `longest` characters; "…" at the end says that there was more."""
    shown = printable(text[: longest + 1])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def fitted(text: str, width: int) -> str:
    """At most `width` wide; a "+" at the end says that there was more, as with sacct."""
    return text if len(text) <= width else text[: width - 1] + "+"


def wrapped(text: str, width: int) -> List[str]:
    """Lines of at most `width`, broken between words; a word that is longer has a line of its own."""
    lines: List[str] = []
    for word in text.split(" "):
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def count(number: int, one: str, many: Optional[str] = None) -> str:
    """ "1 job", "1,200 jobs"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def near_names(given: str, known: Sequence[str]) -> List[str]:
    """Known names that `given` is probably a slip for, nearest first.

    A slip is a letter or two, or a name cut short. Names that only look alike ("muon" and "lion",
    "mi300" and "rtx3090") mean something else and are never offered.
    """
    word = _letters(given)
    ranked = []
    for place, name in enumerate(known):
        other = _letters(name)
        slips = 0 if len(word) >= _CUT_SHORT and other.startswith(word) else _slips(word, other)
        if slips <= _most_slips(min(len(word), len(other))):
            ranked.append((slips, place, name))
    return [name for _, _, name in sorted(ranked)]


_CUT_SHORT = 3
"""Shortest prefix that is accepted as an abbreviation of a name."""


def _letters(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _most_slips(length: int) -> int:
    return 0 if length < 3 else 1 if length < 7 else 2


def _slips(one: str, other: str) -> int:
    """Letters to insert, delete, replace or swap with their neighbour (Damerau and Levenshtein)."""
    if abs(len(one) - len(other)) > 2:
        return 3
    before: List[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row = row, [i]
        for j, b in enumerate(other, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        if min(row) > 2 and min(last) > 2:
            return 3  # what follows can only add to it
        before = last
    return row[-1]
