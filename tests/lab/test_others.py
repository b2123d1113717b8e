"""Estimators of other people on the same jobs: the stored rows' table on its page."""

from __future__ import annotations

from pathlib import Path

from lab.ground_truth import GroundTruth
from lab.others.score import EACH, chosen_jobs, stored_rows, table

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"


def test_the_table_on_the_page_is_what_the_command_prints(ground_truth: GroundTruth) -> None:
    truth = chosen_jobs(ground_truth)
    assert 60 <= len(truth.runs) <= 3 * EACH
    assert len({run.row["model"] for run in truth.runs}) == len(truth.runs)
    page = PAGE.read_text(encoding="utf-8")
    for line in table(stored_rows(), truth):
        assert line in page
