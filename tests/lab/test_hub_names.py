"""The shipped names of Hugging Face models are those of the catalogue."""

from __future__ import annotations

from lab.catalogue.hub_names import content
from lab.places import MODELS
from slurm_gpumem.tracing.model.request import HUB_NAMES as FILE


def test_the_shipped_names_are_those_of_the_catalogue() -> None:
    fix = "python -m lab.catalogue.hub_names"
    assert (MODELS / FILE).read_text() == content(), fix
