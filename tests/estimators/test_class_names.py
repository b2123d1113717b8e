"""Rules about class names: models/class-names.txt and its reader."""

from __future__ import annotations

import re
from pathlib import Path

from slurm_gpumem.estimators.structural.layers import class_names
from slurm_gpumem.estimators.structural.layers.class_names import family_of, named

MODELS = Path(__file__).resolve().parents[2] / "models"
NAMES = sorted(set(re.findall(r"[A-Za-z_]\w+", (MODELS / "known-classes.txt").read_text())))[::9]


def test_words_find_the_names_that_the_same_words_find_as_one_pattern() -> None:
    sections = class_names._read()
    assert set(sections) == {"families", "rules"}
    for rule, words in sections["rules"].items():
        whole = re.compile("|".join(words))
        names = [*NAMES, *(re.sub(r"\W", "", word) for word in words)]
        assert [n for n in names if named(rule, n)] == [n for n in names if whole.search(n)], rule


def test_the_first_family_that_applies_decides() -> None:
    families = {
        family: re.compile("|".join(words)) for family, words in class_names._read()["families"].items()
    }
    for name in NAMES:
        found = next((family for family, whole in families.items() if whole.search(name)), "")
        assert family_of(name) == found, name
    assert family_of("BatchNormAct2d") == "batch_norm_act"
    assert family_of("BatchNorm2d") == "batch_norm"
    assert family_of("SmallCnn") == ""
