"""The catalogue: every line can be read, and says all that building and feeding the model takes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="tasks are made of tensors")

from lab.networks import entries
from lab.networks.entries import load_catalogue
from lab.networks.tasks import TASKS
from slurm_gpumem.errors import ConfigError

CATALOGUE = load_catalogue()


def test_the_catalogue_holds_several_hundred_models_of_many_families() -> None:
    assert len(CATALOGUE) >= 400
    assert len({entry.family for entry in CATALOGUE}) >= 10


@pytest.mark.parametrize("source", ["torchvision", "timm", "transformers"])
def test_every_entry_of_a_source_is_well_formed(source: str) -> None:
    mine = [entry for entry in CATALOGUE if entry.source == source]
    assert mine
    for entry in mine:
        assert entry.id.startswith(f"{source}/"), entry
        assert entry.task in TASKS, entry.id
        assert entry.sizes, entry.id
        assert all(isinstance(size, int) and size > 0 for size in entry.sizes), entry.id


def test_a_model_that_is_listed_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = '[[group]]\nsource = "timm"\nfamily = "cnn"\ntask = "image"\nsizes = [32]\nnames = ["a"]\n'
    (tmp_path / "one.toml").write_text(group + group)
    monkeypatch.setattr(entries, "CATALOGUE", tmp_path)
    with pytest.raises(ConfigError, match="timm/a is listed twice"):
        load_catalogue()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[group]]\nsource = "keras"\n', "source 'keras' is not one of"),
        ('[[group]]\nsource = "timm"\nfamily = "cnn"\nsizes = [1]\nnames = ["a"]\n', "timm/a lacks 'task'"),
    ],
)
def test_a_group_that_says_too_little_is_named(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.toml").write_text(text)
    monkeypatch.setattr(entries, "CATALOGUE", tmp_path)
    with pytest.raises(ConfigError, match=said):
        load_catalogue(["mine"])
