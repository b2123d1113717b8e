"""The measured jobs and sets, the published classes, and the figures made of them."""

from __future__ import annotations

import pytest

from lab.fit.folds import collection_of, fold_of, fold_of_job
from lab.score import sets as set_accuracy
from lab.score.gpuutilnet_table import BUSY, TABLE, class_of, dataset_of
from lab.score.knob import points, table_lines
from lab.score.utilization import Judged, again_line, classes, errors
from lab.shared_speeds import simple_speed
from lab.utilization_runs import SharedSet, Solo, load_sets, load_solo
from slurm_gpumem.utilization.interference import JobLoad, packaged


@pytest.fixture(scope="module")
def runs() -> list[Solo]:
    return load_solo()


def test_every_measured_job_is_between_nothing_and_everything(runs: list[Solo]) -> None:
    assert len(runs) > 250
    for run in runs:
        assert 0 <= run.values["sm_occupancy"] <= run.values["sm_active"] <= 1, run.key
        assert 0 < run.values["step_seconds"] < 5, run.key
        assert run.noise["sm_active"] < 0.2, run.key


def test_every_job_of_a_set_was_measured_alone_too(runs: list[Solo]) -> None:
    known = {run.key for run in runs}
    for one in load_sets():
        assert set(one.jobs) <= known
        assert len(one.jobs) == len(one.speeds) == len(one.solo)


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


@pytest.mark.parametrize(
    ("family", "dataset"),
    [("cnn", "CNN"), ("synthetic-mlp", "MLP"), ("vision-transformer", "Transformer"), ("unet", "CNN")],
)
def test_families_belong_to_the_published_data_sets(family: str, dataset: str) -> None:
    assert dataset_of(family) == dataset


def test_classes_are_cut_at_the_published_edges() -> None:
    assert [class_of("CNN", "sm_active", percent) for percent in (29.9, 30, 89.9, 90)] == [0, 1, 1, BUSY]
    assert TABLE["Transformer", "sm_occupancy"].edges == (30.0, 40.0)


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


def test_the_simple_rule_shares_the_gpus_time() -> None:
    job = JobLoad(0.5, 0.2, 0.2, 0.02)
    assert simple_speed([job]) == 1
    assert simple_speed([job] * 4) == 0.5


def test_speeds_in_sets_are_judged_by_the_slowest_job() -> None:
    one = SharedSet("mps", ("a@1/b1/sgd/fp32", "b@1/b1/sgd/fp32"), (0.5, 0.9), ({}, {}))
    found = set_accuracy.figures([set_accuracy.JudgedSet(one, [0.7, 0.8])])
    assert found.worst == pytest.approx(0.2)
    assert found.each == pytest.approx(0.15)
    assert found.average == pytest.approx(0.05)


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
