"""What torchinfo's tables show and hide; texts/ holds tables of small models by torchinfo 1.8."""

from __future__ import annotations

from pathlib import Path

from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary

TEXTS = Path(__file__).parent / "texts"


def read(name: str) -> ModelSummary:
    return read_summary((TEXTS / f"{name}.txt").read_text())


def test_the_batch_may_come_second() -> None:
    # [32, 4, 64]: 32 tokens lead nearly every row.
    assert read("xlnet-batch-second").batch == 4


def test_the_batch_may_be_folded_into_the_first_size_of_every_layer() -> None:
    # Edges and nodes of 2 graphs; 12 frames of each of 2 films. Nothing but the batch leads them all.
    assert read("mesh-folded-batch").batch == 2
    assert read("frames-folded-batch").batch == 2


def test_an_input_and_an_output_of_one_sample_make_the_batch_one() -> None:
    alone = (TEXTS / "mesh-folded-batch.txt").read_text().replace("[2, 1000, 3]", "[1, 1000, 3]")
    assert read_summary(alone).batch == 1


def test_a_table_that_shows_all_layers_is_not_asked_for_more_depth() -> None:
    whole, cut = read("convnextv2-depth20"), read("convnextv2-depth3")
    assert not whole.hidden
    assert not [warning for warning in whole.warnings if "depth=20" in warning]
    assert cut.hidden
    assert [warning for warning in cut.warnings if "depth=20" in warning]


def test_a_table_without_input_has_no_shapes() -> None:
    bare = read("convnextv2-no-input")
    assert not bare.has_shapes
    assert bare.total_params == read("convnextv2-depth20").total_params
