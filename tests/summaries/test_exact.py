"""Texts of real tools are read as they were, to the last figure and word."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem.summaries.reader import parse
from tests.summaries.saved_summaries import saved_summaries
from tests.support.kept import assert_kept

_SAVED = {stem: saved for stem, saved in saved_summaries().items() if saved.tool != "keras"}


@pytest.mark.parametrize("tool", sorted({saved.tool for saved in _SAVED.values()}))
def test_a_text_is_read_as_it_was(tool: str) -> None:
    read = {
        stem: repr(parse(saved.text, origin=stem)) for stem, saved in _SAVED.items() if saved.tool == tool
    }
    assert_kept(Path(__file__).parent / "fixtures" / "read.json", read)


def test_a_table_of_a_small_model_is_read_as_it_was() -> None:
    texts = Path(__file__).parent / "texts"
    read = {file.name: repr(parse(file.read_text(), origin="text")) for file in sorted(texts.iterdir())}
    assert_kept(Path(__file__).parent / "fixtures" / "read.json", read)
