"""Prometheus' text format, read strictly: what this refuses, some scraper may refuse."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Dict, List, Tuple

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(,|(?=\}))')
_VALUE = re.compile(r"[+-]?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|Inf)|NaN")
_KINDS = ("counter", "gauge", "histogram", "summary", "untyped")
_UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Labels = Tuple[Tuple[str, str], ...]


@dataclass
class Family:
    """One metric with its samples: (name, labels) → value."""

    kind: str
    about: str
    samples: Dict[Tuple[str, Labels], float] = field(default_factory=dict)

    def value(self, suffix: str = "", **labels: str) -> float:
        """The one sample whose labels contain these."""
        found = [
            value
            for (name, have), value in self.samples.items()
            if name.endswith(suffix) and labels.items() <= dict(have).items()
        ]
        assert len(found) == 1, (labels, found)
        return found[0]


def parse(text: str) -> Dict[str, Family]:
    """The families; AssertionError says which line is wrong."""
    assert text.endswith("\n"), "the last line must end"
    families: Dict[str, Family] = {}
    current = about = ""
    for number, line in enumerate(text[:-1].split("\n"), 1):
        where = f"line {number}: {line!r}"
        assert line, where
        assert line == line.strip(), where
        assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in line), where
        if line.startswith("# HELP "):
            _, _, name, about = line.split(" ", 3)
            assert name not in families, f"{where}: its family was here before"
            current = name
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current, where
            assert kind in _KINDS, where
            assert name not in families, where
            families[name] = Family(kind, about)
        else:
            _sample(line, where, families, current)
    for name, family in families.items():
        assert family.samples, f"{name} has no samples"
        if family.kind == "histogram":
            _check_histogram(name, family)
        if family.kind == "counter":
            assert name.endswith("_total"), name
            assert min(family.samples.values()) >= 0, name
    return families


def _sample(line: str, where: str, families: Dict[str, Family], current: str) -> None:
    match = _NAME.match(line)
    assert match, where
    name, rest = match.group(), line[match.end() :]
    labels: List[Tuple[str, str]] = []
    if rest.startswith("{"):
        rest = rest[1:]
        while not rest.startswith("}"):
            label = _LABEL.match(rest)
            assert label, where
            value = re.sub(r"\\.", lambda found: _UNESCAPED[found.group()], label.group(2))
            labels.append((label.group(1), value))
            rest = rest[label.end() :]
        rest = rest[1:]
    # One blank and the value, no time behind it: the textfile collector refuses files with times.
    assert rest.startswith(" "), where
    assert _VALUE.fullmatch(rest[1:]), where
    assert current in families, f"{where}: no TYPE before it"
    endings = ("_bucket", "_sum", "_count") if families[current].kind == "histogram" else ("",)
    assert name in {current + ending for ending in endings}, f"{where}: not of the family {current}"
    assert len({key for key, _ in labels}) == len(labels), f"{where}: a label twice"
    assert not any(key.startswith("__") for key, _ in labels), where
    key = (name, tuple(sorted(labels)))
    assert key not in families[current].samples, f"{where}: twice"
    families[current].samples[key] = float(rest[1:])


def _check_histogram(name: str, family: Family) -> None:
    buckets: Dict[Labels, List[Tuple[float, float]]] = {}
    for (sample, labels), value in family.samples.items():
        if sample.endswith("_bucket"):
            bound = float(dict(labels)["le"])
            others = tuple(label for label in labels if label[0] != "le")
            buckets.setdefault(others, []).append((bound, value))
    for others, found in buckets.items():
        assert found == sorted(found), f"{name}: buckets out of order"
        assert [value for _, value in found] == sorted(value for _, value in found), f"{name}: not cumulative"
        assert found[-1][0] == math.inf, f"{name}: no +Inf"
        assert family.samples[f"{name}_count", others] == found[-1][1], name
        assert (f"{name}_sum", others) in family.samples, name
