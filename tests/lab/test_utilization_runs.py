"""The measured jobs and sets, the published classes, and the figures made of them."""

from __future__ import annotations

import pytest

from lab.fit.folds import collection_of, fold_of, fold_of_job
from lab.score import sets as set_accuracy
from lab.score.knob import points, table_lines
from lab.score.utilization import Judged, again_line, classes, errors
from lab.utilization_runs import Solo, load_sets, load_solo
from slurm_gpumem.utilization.interference import packaged


@pytest.fixture(scope="module")
def runs() -> list[Solo]:
    return load_solo()


def test_a_collection_is_left_out_as_a_whole_and_others_by_family(runs: list[Solo]) -> None:
    by_fold: dict[int, set[str]] = {}
    for run in runs:
        by_fold.setdefault(fold_of_job(run.row), set()).add(collection_of(run.row))
    assert {"written", "fresh", "third"} <= {name for names in by_fold.values() for name in names}
    assert all(len(names) == 1 for names in by_fold.values())
    assert fold_of_job({"model": "timm/resnet18", "run": "utilization-2026"}) == fold_of("timm/resnet50")
    # Measured again on another day, a job stays in its collection.
    again = {"model": "timm/resnet18", "run": "later-2026-11-16", "collection": "third"}
    assert fold_of_job(again) == fold_of_job({"model": "own/x", "run": "third-2026-11-16"})


def test_a_job_measured_in_two_sessions_says_how_far_apart_they_are(runs: list[Solo]) -> None:
    run = runs[0]
    slower = {**run.values, "sm_active": run.values["sm_active"] - 0.03}
    slower["step_seconds"] *= 1.5
    assert again_line([run]) == "no job was measured in two sessions"
    said = again_line([run._replace(values=slower), run])
    assert "1 jobs measured in two sessions: SM activity 3.0 points apart" in said
    assert "steps 1.50 times" in said


def judged(run: Solo, got: float, leaning: float) -> Judged:
    values = {**run.values, "sm_active": got}
    intervals = dict.fromkeys(run.values, (0.0, 1.0))
    return Judged(run, "torchinfo", "summary", values, intervals, leaning)


def test_figures_count_points_of_percent_and_found_busy_jobs(runs: list[Solo]) -> None:
    run = next(run for run in runs if run.family == "cnn")
    busy, quiet = (run._replace(values={**run.values, "sm_active": share}) for share in (0.95, 0.5))
    items = [judged(busy, 0.85, 0.92), judged(quiet, 0.6, 0.7)]
    assert errors(items, "sm_active").mean == pytest.approx(10)
    found = classes(items, "sm_active")
    assert (found.accuracy, found.recall, found.busy) == (1.0, 1.0, 1)
    assert classes([judged(busy, 0.85, 0.86)], "sm_active").recall == 0


def test_interference_is_better_than_the_simple_rule_on_models_left_out() -> None:
    sets, left_out = load_sets(), set_accuracy.load_left_out()
    for mode, most in (("mps", 0.08), ("timeslice", 0.08)):
        chosen = [one for one in sets if one.mode == mode]
        found = set_accuracy.figures(set_accuracy.judge_sets(chosen, left_out))
        assert found.worst < most
        assert found.worst < set_accuracy.figures(set_accuracy.judge_simple(chosen)).worst / 1.5


def test_the_knob_buys_work_with_speed() -> None:
    found = points(load_sets(), packaged())
    assert [p.knob for p in found] == sorted(p.knob for p in found)
    for p in found:
        assert p.low >= 1 / p.knob - 1e-6
    assert found[0].work < found[-3].work
    assert len(table_lines(found)) == len(found) + 2
