"""The published classifiers' own measure: is the peak in the right class of size?"""

from __future__ import annotations

from pathlib import Path

from lab.ground_truth import load_ground_truth
from lab.score.accuracy import Score
from lab.score.classes import class_accuracy, class_lines
from tests.lab.test_accuracy import _row, _write


def _scores(folder: Path, *pairs: tuple[int, int]) -> list[Score]:
    run = load_ground_truth(_write(folder, [_row(1, family="synthetic-mlp")])).runs[0]
    return [Score(run, "structural", "torchsummary", real, peak, peak) for real, peak in pairs]


def test_a_peak_counts_only_in_the_class_of_the_measured_one(tmp_path: Path) -> None:
    scores = _scores(tmp_path, (1000, 1023), (1000, 1024), (3000, 2100), (2047, 2049))
    assert class_accuracy(scores, 1) == 0.5
    assert class_accuracy(scores, 2) == 0.75


def test_the_table_has_the_families_that_were_scored_and_is_away_without_any(tmp_path: Path) -> None:
    lines = class_lines(_scores(tmp_path, (1000, 1023), (1000, 2024)), ["corrected", "structural"])
    assert [line.split() for line in lines[1:]] == [
        ["estimator", "mlp,", "1", "GiB", "mlp,", "2", "GiB"],
        ["structural", "0.500", "1.000"],
    ]
    assert class_lines([], ["structural"]) == []
