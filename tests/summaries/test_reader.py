"""Reading a summary file: every wrong file gets a message that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.summaries.reader import MAX_BYTES, read_summary


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SummaryError, match=r"nowhere\.txt: no such file"):
        read_summary(tmp_path / "nowhere.txt")


@pytest.mark.parametrize("source", ["", " ", "\n\n"])
def test_an_empty_text_or_path_is_refused_as_such(source: str) -> None:
    with pytest.raises(SummaryError, match="is empty, or its path is"):
        read_summary(source)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SummaryError, match="is a directory"):
        read_summary(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n\n", "is empty"),
        (b"\x7fELF\x00\x01", "binary"),
        (b"import torch\nprint(1)\n", "not a model summary"),
        (b"x" * (MAX_BYTES + 1), "larger than"),
    ],
)
def test_a_file_that_is_no_summary_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "summary.txt"
    path.write_bytes(content)
    with pytest.raises(SummaryError, match=message):
        read_summary(path)
