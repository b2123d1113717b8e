"""The catalogue: every line can be read, and says all that building and feeding the model takes."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="planning weighs models with torch")

from lab.collect import entries
from lab.collect.entries import load_catalogue
from lab.collect.footprint import load_footprints
from lab.collect.tasks import TASKS
from slurm_gpumem.errors import ConfigError

CATALOGUE = load_catalogue()


def test_the_catalogue_holds_several_hundred_models_of_many_families() -> None:
    assert len(CATALOGUE) >= 400
    assert len({entry.family for entry in CATALOGUE}) >= 20


@pytest.mark.parametrize("source", entries.SOURCES)
def test_every_entry_of_a_source_is_well_formed(source: str) -> None:
    mine = [entry for entry in CATALOGUE if entry.source == source]
    assert mine
    for entry in mine:
        assert entry.id.startswith(f"{source}/"), entry
        assert entry.task in TASKS, entry.id
        assert entry.sizes, entry.id
        assert all(isinstance(size, int) and size > 0 for size in entry.sizes), entry.id
        assert 1 <= entry.min_batch <= entry.max_batch, entry.id


def test_every_network_of_our_own_has_a_builder() -> None:
    for entry in CATALOGUE:
        if entry.source == "own":
            module, _, name = entry.build.rpartition(".")
            assert callable(getattr(importlib.import_module(f"lab.zoo.{module}"), name))


def test_every_network_of_our_own_has_a_footprint_to_choose_its_batch_by() -> None:
    known = load_footprints()
    assert not [entry.id for entry in CATALOGUE if entry.source == "own" and entry.id not in known]


def test_a_model_that_is_listed_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = '[[group]]\nsource = "own"\nfamily = "cnn"\ntask = "image"\nsizes = [32]\nnames = ["a"]\n'
    (tmp_path / "one.toml").write_text(group + group)
    monkeypatch.setattr(entries, "CATALOGUE", tmp_path)
    with pytest.raises(ConfigError, match="own/a is listed twice"):
        load_catalogue()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[group]]\nsource = "keras"\n', "source 'keras' is not one of"),
        ('[[group]]\nsource = "own"\nfamily = "cnn"\nsizes = [1]\nnames = ["a"]\n', "own/a lacks 'task'"),
    ],
)
def test_a_group_that_says_too_little_is_named(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text(text)
    monkeypatch.setattr(entries, "CATALOGUE", tmp_path)
    with pytest.raises(ConfigError, match=said):
        load_catalogue(["mine"])
