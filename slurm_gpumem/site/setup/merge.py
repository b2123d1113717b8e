"""Take our part of a file back where somebody has edited the file since: ours goes, theirs stays."""

from __future__ import annotations

import difflib
import re
from typing import Dict, List, NamedTuple, Sequence, Tuple

_WORDS = re.compile(r"\s+|=|,?[^\s,=]+|,")
"""A comma belongs to the word behind it: what is added to a list is a word of its own."""
_KEY = re.compile(r"\s*[^\s=]*(\s*=\s*[^\s,]*(?=\s+\S))?")
"""What makes a line the same one after an edit: its first word, or NodeName=n1 of several."""


class Merged(NamedTuple):
    """A file without our part."""

    text: str
    lost: Tuple[str, ...]
    """Their edits of our own words, which went with them."""


class _Aligned(NamedTuple):
    """Where the lines of a text are in another one."""

    same: Dict[int, str]
    """By a line's number what became of it; without those that are gone."""
    new: Dict[int, List[str]]
    """By the number of the line that follows, lines that have come."""


def taken_back(before: str, ours: str, now: str) -> Merged:
    """What `now`, edited from `ours`, is without the change from `before` to `ours`.

    By lines; a line that both changed, by its words: `Gres=gpu:4,shard:8` that got a Weight loses its shards.
    """
    lines = _lines(ours)
    back, theirs = _aligned(lines, _lines(before)), _aligned(lines, _lines(now))
    result: List[str] = []
    lost: List[str] = []
    for number in range(len(lines) + 1):
        restored, added = back.new.get(number, []), theirs.new.get(number, [])
        result += restored if restored == added else [*restored, *added]
        if number == len(lines) or number not in theirs.same:
            continue
        line, was, found = lines[number], back.same.get(number), theirs.same[number]
        if was is not None:
            result.append(was if found == line else _in_words(was, line, found, lost))
        elif found != line:
            lost.append(found.strip())
    return Merged("".join(result), tuple(lost))


class _Change(NamedTuple):
    """Words in the place of others."""

    start: int
    end: int
    new: Tuple[str, ...]


def _lines(text: str) -> List[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _aligned(base: Sequence[str], other: Sequence[str]) -> _Aligned:
    # Of lines that are there several times, those at the ends stay with their neighbours.
    shorter = min(len(base), len(other))
    head = next((at for at in range(shorter) if base[at] != other[at]), shorter)
    tail = next((at for at in range(shorter - head) if base[-1 - at] != other[-1 - at]), shorter - head)
    same = {number: base[number] for number in (*range(head), *range(len(base) - tail, len(base)))}
    new: Dict[int, List[str]] = {}
    middle, changed = base[head : len(base) - tail], other[head : len(other) - tail]
    for tag, *where in _codes(middle, changed):
        start, end, first, last = (number + head for number in where)
        if tag == "equal":
            same.update(zip(range(start, end), other[first:last]))
            continue
        keys = [[_key(line) for line in part] for part in (base[start:end], other[first:last])]
        for kind, a, b, c, d in _codes(*keys):
            if kind == "equal":
                same.update(zip(range(start + a, start + b), other[first + c : first + d]))
            else:
                new.setdefault(start + a, []).extend(other[first + c : first + d])
    return _Aligned(same, new)


def _key(line: str) -> str:
    match = _KEY.match(line)
    return match[0].strip().lower() if match else ""


def _in_words(before: str, ours: str, now: str, lost: List[str]) -> str:
    """The same in one line; where both changed the same words, those that were there come back."""
    words = _WORDS.findall(ours)
    back, theirs = (_changes(words, _WORDS.findall(text)) for text in (before, now))
    made = list(back)
    for change in theirs:
        if not any(change.start < one.end and one.start < change.end for one in back):
            made.append(change)
        elif change not in back:
            lost.append("".join(change.new).strip())
    result: List[str] = []
    at = 0
    for change in sorted(made, key=lambda change: (change.start, change.end)):
        result += [*words[at : change.start], *change.new]
        at = change.end
    return "".join([*result, *words[at:]])


def _changes(base: Sequence[str], other: Sequence[str]) -> List[_Change]:
    codes = [code for code in _codes(base, other) if code[0] != "equal"]
    return [_Change(start, end, tuple(other[first:last])) for _, start, end, first, last in codes]


def _codes(base: Sequence[str], other: Sequence[str]) -> Sequence[Tuple[str, int, int, int, int]]:
    return difflib.SequenceMatcher(None, base, other, autojunk=False).get_opcodes()
