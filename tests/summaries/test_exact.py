"""Texts of real tools are read as they were, to the last figure and word."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem.estimators.known.store import key_of, keys_at_depths
from slurm_gpumem.report.estimate import describe_model
from slurm_gpumem.summaries.reader import parse
from tests.summaries.saved_summaries import saved_summaries
from tests.support.kept import assert_kept

_SAVED = {stem: saved for stem, saved in saved_summaries().items() if saved.tool != "keras"}


def _read(text: str, origin: str) -> str:
    """All of it, and what it is known by."""
    summary = parse(text, origin=origin)
    keys = [key_of(summary), *keys_at_depths(summary)]
    return repr((summary, summary.fingerprint, keys, describe_model(summary)))


@pytest.mark.parametrize("tool", sorted({saved.tool for saved in _SAVED.values()}))
def test_a_text_is_read_as_it_was(tool: str) -> None:
    read = {stem: _read(saved.text, stem) for stem, saved in _SAVED.items() if saved.tool == tool}
    assert_kept(Path(__file__).parent / "fixtures" / "read.json", read)


def test_a_table_of_a_small_model_is_read_as_it_was() -> None:
    texts = Path(__file__).parent / "texts"
    read = {file.name: _read(file.read_text(), "text") for file in sorted(texts.iterdir())}
    assert_kept(Path(__file__).parent / "fixtures" / "read.json", read)
