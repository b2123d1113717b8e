"""The catalogue: every line can be read, and says all that building and feeding the model takes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tasks are made of tensors")

from lab.networks.entries import load_catalogue
from lab.networks.tasks import TASKS

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
