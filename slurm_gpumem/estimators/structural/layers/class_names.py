"""What class names say of layers, blocks and models: the rules of models/class-names.txt.

Most words of a rule are plain text and need no regular expression. A pattern is compiled only for a name that
has the plain text in it: compiling them all would take longer than a whole estimate.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Dict, List, Sequence, Tuple

from slurm_gpumem.data import data_file

FILE = "class-names.txt"
_FAMILIES, _RULES = "families", "rules"
_BUCKETS = 512
"""Both directions of DeBERTa-v2's position buckets."""
_PLAIN = re.compile(r"(\^?)(\w+)(\$?)", re.ASCII)
_NOT_FIXED = re.compile(r"\[[^]]*\][?*+]?|\\.[?*+]?|\w[?*]|[^\w]")
"""What may be missing from a name that a pattern without groups finds."""


class Word:
    """One word of a rule: plain text at some place of a name, or a pattern."""

    def __init__(self, text: str) -> None:
        plain = _PLAIN.fullmatch(text)
        self._begins, self._text, self._ends = plain.groups() if plain else ("", "", "")
        self._pattern = "" if plain else text
        self._fixed = () if plain else _fixed_parts(text)

    def found_in(self, name: str) -> bool:
        """Whether the name has it."""
        if self._pattern:
            return all(part in name for part in self._fixed) and bool(re.search(self._pattern, name))
        if self._begins:
            return name == self._text if self._ends else name.startswith(self._text)
        return name.endswith(self._text) if self._ends else self._text in name


def _fixed_parts(pattern: str) -> Tuple[str, ...]:
    """Plain text that every name which the pattern finds must have."""
    without_groups, depth = "", 0
    for letter in pattern:
        depth += letter == "("
        without_groups += letter if not depth else ""
        if letter == ")":
            depth -= 1
            without_groups += " "
    return tuple(_NOT_FIXED.sub(" ", without_groups).split())


@lru_cache(maxsize=1)
def _read() -> Dict[str, Dict[str, List[str]]]:
    """The words of each section's rules, by the rule's name."""
    sections: Dict[str, Dict[str, List[str]]] = {}
    words: List[str] = []
    with open(data_file("models", FILE), encoding="utf-8") as file:
        lines = file.read().splitlines()
    for line in lines:
        if line.startswith("["):
            sections[line.strip("[]")] = {}
        elif line.startswith(" "):
            words += line.split()
        elif line and not line.startswith("#"):
            words = []
            sections[list(sections)[-1]][line.rstrip(":")] = words
    return sections


@lru_cache(maxsize=256)
def _words(section: str, rule: str) -> Tuple[Word, ...]:
    return tuple(map(Word, _read()[section][rule]))


@lru_cache(maxsize=8192)
def named(rule: str, name: str) -> bool:
    """Whether the name of a class is one that this rule is about."""
    return any(word.found_in(name) for word in _words(_RULES, rule))


@lru_cache(maxsize=4096)
def family_of(kind: str) -> str:
    """The family whose rule applies to this class; "" if the name does not show it."""
    for family in _read()[_FAMILIES]:
        if any(word.found_in(kind) for word in _words(_FAMILIES, family)):
            return family
    return ""


def is_attention(kind: str) -> bool:
    """Whether a container of this class computes attention between its projections."""
    return named("attention", kind) and not kind.endswith("Projection")


def computes_matrix(kind: str) -> bool:
    """Whether attention of this class materializes its matrix although no row shows it."""
    return named("written-out", kind) or (named("eager", kind) and is_attention(kind))


def drops_eagerly(kind: str) -> bool:
    """Whether attention of this class applies dropout to its matrix as a function, which has no row."""
    return named("eager", kind) and named("dropping", kind)


def position_scores(kind: str) -> int:
    """Relative positions whose scores attention of this class keeps: -1 for all distances, 0 for none."""
    if not named("relative-positions", kind):
        return 0
    return _BUCKETS if "V2" in kind else -1


def may_add_input(kind: str) -> bool:
    """Whether a container of this class may add its input to its output."""
    return named("residual", kind) and not named("plain-container", kind)


def keeps_cache(model: str) -> bool:
    """Whether a model of this class returns the keys and values of every layer, also during training."""
    return named("generates", model) or named("caching-classifier", model)


def has_decoder(model: str) -> bool:
    """Whether its decoder does."""
    return "ForConditionalGeneration" in model or model.endswith("MTModel")


def upsamples_logits(model: str) -> bool:
    """Whether a model of this class resizes its logits to the input's size before computing the loss."""
    return "ForSemanticSegmentation" in model


def hidden_activation(kind: str) -> str:
    """The activation that a container of this class calls as a function after its only layer; "": none."""
    if not kind.endswith("Intermediate"):
        return ""
    return "ErfGELU" if kind.startswith("Esm") else "GELU"


def drops(around: Sequence[str]) -> bool:
    """Whether a dropout inside containers of these classes is likely to have p > 0."""
    return not any(named("no-dropout", kind) for kind in around[-3:])
