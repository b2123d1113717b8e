"""Stored predictions stand in the table beside estimators that are run again."""

from __future__ import annotations

from dataclasses import replace

from lab.ground_truth import GroundTruth
from lab.score.accuracy import score_stored
from lab.score.predictions import Predictions, load_predictions


def test_the_package_s_predictions_are_of_measured_runs(ground_truth: GroundTruth) -> None:
    keys = {run.key for run in ground_truth.runs}
    for name, predictions in load_predictions().items():
        assert len(keys & set(predictions.rows)) > len(keys) / 2, name
        assert all(0 < peak <= request for peak, request in predictions.rows.values()), name
        assert predictions.card["how"], name


def test_they_are_scored_on_the_runs_they_know(ground_truth: GroundTruth) -> None:
    few = replace(ground_truth, runs=ground_truth.runs[:3])
    known = few.runs[1]
    scores = score_stored(few, Predictions("net", {known.key: (5000, 8192)}, {}))
    assert [(s.run.key, s.peak_mib, s.request_mib, s.estimator) for s in scores] == [
        (known.key, 5000, 8192, "net")
    ]
    assert scores[0].real_mib == known.process_mib
