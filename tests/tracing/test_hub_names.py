"""Names of the Hugging Face hub that need neither the hub nor torch."""

from __future__ import annotations

import pytest

from slurm_gpumem.tracing.model.request import known_model


@pytest.mark.parametrize(
    "name", ["bert-large", "bert-large-uncased", "google-bert/bert-large-cased", "BERT-Large"]
)
def test_a_well_known_name_is_a_class_and_its_sizes(name: str) -> None:
    found = known_model(name)
    assert found is not None
    built, fields = found
    assert built == "BertForSequenceClassification"
    assert fields["num_hidden_layers"] == 24


def test_other_names_are_left_to_transformers() -> None:
    assert known_model("nobody/knows-this") is None
