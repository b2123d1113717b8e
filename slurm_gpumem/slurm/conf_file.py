"""Slurm's configuration files as Slurm reads them: comments, continued lines, Include files, edits in where.

A statement is one logical line. It knows where each of its characters is in the file, so that a value can
be replaced without touching comments, line breaks or anything else around it.
"""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.errors import ConfigError
from slurm_gpumem.slurm.node_names import expand_names

_PAIR = re.compile(r'(?:^|(?<=\s))([A-Za-z0-9_.]+)\s*[-+*/]?=\s*(?:"([^"]*)"(?=\s|$)|(\S*))')
_INCLUDE = re.compile(r"(?i)\s*include\s+(\S+)\s*")
_DEEPEST = 16
"""Slurm itself has no limit; a file that includes itself ends here."""


class Edit(NamedTuple):
    """Replace part of a file; an insertion where start and end are equal."""

    file: str
    start: int
    end: int
    text: str


class Pair(NamedTuple):
    """One Key=value of a statement."""

    key: str
    value: str
    """Without the quotes around it."""
    start: int
    """Where the key starts and the value ends, in the statement's text."""
    value_start: int
    end: int


@dataclass(frozen=True)
class Statement:
    """One logical line of a file."""

    file: str
    start: int
    """Where its first line starts in the file, and where its last one ends."""
    end: int
    text: str
    """Without comments; continued lines joined."""
    offsets: Tuple[int, ...]
    """Where each character of the text is in the file."""

    @property
    def pairs(self) -> List[Pair]:
        """Every Key=value, in order."""
        return [
            Pair(match[1], match[2] if match[2] is not None else match[3], match.start(1), value, match.end())
            for match in _PAIR.finditer(self.text)
            for value in [match.start(2) - 1 if match[2] is not None else match.start(3)]
        ]

    def value(self, key: str) -> Optional[str]:
        """The last value of a key, whatever its case; None without it."""
        found = [pair.value for pair in self.pairs if pair.key.lower() == key.lower()]
        return found[-1] if found else None

    @property
    def kind(self) -> str:
        """The first key in lower case ("nodename"); "" where there is none."""
        pairs = self.pairs
        return pairs[0].key.lower() if pairs else ""

    @property
    def include(self) -> Optional[str]:
        """The file that this line includes."""
        match = _INCLUDE.fullmatch(self.text)
        return match[1] if match else None

    def set(self, key: str, value: str) -> List[Edit]:
        """Edits that give a key this value: in its place, or at the end of the statement."""
        found = [pair for pair in self.pairs if pair.key.lower() == key.lower()]
        if not found:
            return [self.appended(f" {key}={value}")]
        return [self._replace(pair.value_start, pair.end, value) for pair in found]

    def without(self, key: str) -> List[Edit]:
        """Edits that take a key and its value out."""
        return [self._replace(p.start, p.end, "") for p in self.pairs if p.key.lower() == key.lower()]

    def removed(self) -> Edit:
        """The edit that takes all of its lines out."""
        return Edit(self.file, self.start, self.end, "")

    def only_words(self, key: str, words: Sequence[str]) -> List[Edit]:
        """Edits that leave a key these comma-separated words, or take it out where there are none."""
        return self.set(key, ",".join(words)) if words else self.without(key)

    def appended(self, text: str) -> Edit:
        """The edit that puts a text at the statement's end."""
        # Behind the last word: a comment or a backslash may follow it in the same line.
        at = self.offsets[len(self.text.rstrip()) - 1] + 1
        return Edit(self.file, at, at, text)

    def _replace(self, start: int, end: int, text: str) -> Edit:
        if start == end:  # "Key=" without a value
            at = self.offsets[start - 1] + 1
            return Edit(self.file, at, at, text)
        return Edit(self.file, self.offsets[start], self.offsets[end - 1] + 1, text)


class Where(NamedTuple):
    """Where a configuration is, and how its Slurm finds the files that it includes."""

    folder: str = ""
    """The folder of slurm.conf; file names are relative to it."""
    beside: bool = False
    """Whether a relative name counts from the file that includes it (22.05), not from slurm.conf's folder."""

    def candidates(self, include: str, file: str) -> List[str]:
        """Names under which an included file may be, the first that exists counts."""
        if os.path.isabs(include):
            inside = self.folder and os.path.commonpath([include, self.folder]) == self.folder
            return [os.path.relpath(include, self.folder) if inside else os.path.normpath(include)]
        near = os.path.normpath(os.path.join(os.path.dirname(file), include))
        names = [near, os.path.normpath(include)]
        return names if self.beside else names[::-1]


class Include(NamedTuple):
    """An Include line and the file that it means."""

    statement: Statement
    file: str


class Tree(NamedTuple):
    """A file with everything that it includes."""

    statements: Tuple[Statement, ...]
    """In the order in which Slurm reads them; Include lines are left out."""
    includes: Tuple[Include, ...]
    files: Tuple[str, ...]
    """The names of all files that were read, the first one first."""
    missing: Tuple[str, ...]
    """Included files that are not among the texts."""


def read_tree(name: str, texts: Mapping[str, str], where: Where) -> Tree:
    """The statements of a file and of the files it includes; `texts` by their names."""
    found: List[Statement] = []
    includes: List[Include] = []
    files: List[str] = []
    missing: List[str] = []

    def read(file: str, depth: int) -> None:
        if depth > _DEEPEST:
            raise ConfigError(f"{file}: includes itself, or Include lines are more than {_DEEPEST} deep")
        if file not in texts:
            missing.append(file)
            return
        if file not in files:
            files.append(file)
        for statement in parse(file, texts[file]):
            if statement.include is None:
                found.append(statement)
                continue
            names = where.candidates(statement.include, file)
            included = next((name for name in names if name in texts), names[0])
            includes.append(Include(statement, included))
            read(included, depth + 1)

    read(name, 0)
    return Tree(tuple(found), tuple(includes), tuple(files), tuple(missing))


def read_from_disk(name: str, where: Where) -> Dict[str, str]:
    """The texts of a file and of the files it includes, as far as they can be read."""
    texts: Dict[str, str] = {}

    def read(file: str) -> bool:
        try:
            # Byte for byte: what is not to change must come out as it went in.
            with open(os.path.join(where.folder, file), "rb") as opened:
                texts[file] = opened.read().decode("utf-8", "surrogateescape")
        except OSError:
            return False  # `read_tree` lists it as missing
        for statement in parse(file, texts[file]):
            names = where.candidates(statement.include, file) if statement.include else []
            if not any(name in texts for name in names):
                any(read(name) for name in names)
        return True

    read(name)
    return texts


def parse(file: str, text: str) -> Iterator[Statement]:
    """The logical lines of a file that are not empty."""
    at = 0
    start = 0
    logical: List[str] = []
    offsets: List[int] = []
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        body = _without_comment(line.rstrip("\r\n"))
        continued = re.search(r"(?<!\\)(?:\\\\)*(\\)\s*$", body)
        kept = body[: continued.start(1)] if continued else body
        logical.append(kept)
        offsets += range(at, at + len(kept))
        at += len(line)
        if not continued:
            if "".join(logical).strip():
                yield Statement(file, start, at, "".join(logical), tuple(offsets))
            start, logical, offsets = at, [], []
    if "".join(logical).strip():
        yield Statement(file, start, at, "".join(logical), tuple(offsets))


def apply(texts: Mapping[str, str], edits: Sequence[Edit]) -> Dict[str, str]:
    """The texts with all edits made; edits of one file must not overlap."""
    changed = dict(texts)
    for edit in sorted(edits, key=lambda edit: (edit.file, edit.start, edit.end), reverse=True):
        text = changed[edit.file]
        changed[edit.file] = text[: edit.start] + edit.text + text[edit.end :]
    return changed


def _without_comment(line: str) -> str:
    """The line up to a "#" that no backslash protects."""
    match = re.search(r"(?<!\\)(?:\\\\)*#", line)
    return line[: match.end() - 1] if match else line


# The nodes and partitions of slurm.conf, with what they inherit from DEFAULT lines.

DEFAULT = "default"
Attributes = Mapping[str, str]
"""Keys in lower case."""


class Line(NamedTuple):
    """One NodeName or PartitionName line that is not DEFAULT's."""

    statement: Statement
    names: Tuple[str, ...]
    attributes: Attributes
    """With those that it inherits."""


def lines_of(statements: Sequence[Statement], kind: str) -> List[Line]:
    """The lines of a kind ("nodename"); DEFAULT lines count for those behind them."""
    inherited: Dict[str, str] = {}
    found = []
    for statement in statements:
        if statement.kind != kind:
            continue
        name = statement.value(kind) or ""
        own = {pair.key.lower(): pair.value for pair in statement.pairs if pair.key.lower() != kind}
        if name.lower() == DEFAULT:
            inherited.update(own)
        else:
            found.append(Line(statement, tuple(expand_names(name)), {**inherited, **own}))
    return found


def attributes_of(lines: Sequence[Line]) -> Dict[str, Attributes]:
    """Each name's attributes; of several lines for one name the last one counts, as for Slurm."""
    return {name: line.attributes for line in lines for name in line.names}


def partition_nodes(statements: Sequence[Statement]) -> Dict[str, Tuple[str, ...]]:
    """The names of each partition's nodes; ALL and node sets are resolved."""
    nodes = attributes_of(lines_of(statements, "nodename"))
    sets: Dict[str, Tuple[str, ...]] = {}
    for line in lines_of(statements, "nodeset"):
        feature = line.attributes.get("feature")
        by_feature = [
            name
            for name, known in nodes.items()
            if feature and feature in (known.get("feature") or known.get("features", "")).split(",")
        ]
        listed = expand_names(line.attributes.get("nodes", ""))
        for name in line.names:
            sets[name] = tuple(dict.fromkeys([*listed, *by_feature]))
    found: Dict[str, Tuple[str, ...]] = {}
    for line in lines_of(statements, "partitionname"):
        members: List[str] = []
        for word in expand_names(line.attributes.get("nodes", "")):
            members += nodes if word.upper() == "ALL" else sets.get(word, (word,))
        for name in line.names:
            found[name] = tuple(name for name in dict.fromkeys(members) if name in nodes)
    return found
