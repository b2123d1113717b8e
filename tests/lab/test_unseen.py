"""The publication's unseen models: every bar is answered by ours, and ours are nearer."""

from __future__ import annotations

from statistics import median
from typing import List
from xml.etree import ElementTree

import pytest

from lab.ground_truth import GroundTruth
from lab.unseen import figures
from lab.unseen.figures import Group, groups, svg, table
from lab.unseen.published import CNNS, TRANSFORMERS
from slurm_gpumem.errors import UsageError


@pytest.fixture(scope="module")
def found(ground_truth: GroundTruth) -> List[Group]:
    return groups(ground_truth)


def _median_error(found: List[Group], name: str) -> float:
    return median(abs(group.answers[name] / group.job.actual - 1) for group in found if name in group.answers)


def test_every_published_job_is_answered_by_a_text_and_most_by_a_trace(found: List[Group]) -> None:
    assert len(found) == len(CNNS) + len(TRANSFORMERS) == 18
    assert all("text" in group.answers for group in found)
    assert sum("trace" in group.answers for group in found) >= 16


def test_our_estimates_are_nearer_than_the_published_ones(found: List[Group]) -> None:
    theirs = min(_median_error(found, name) for name in figures.PUBLISHED_BARS)
    assert _median_error(found, "text") < theirs / 2
    assert _median_error(found, "trace") < theirs / 2
    # What counts for sharing: jobs that take more than was asked. GPUMemNet's upper edges miss two as well.
    below = [group for group in found if group.requests["text"] < group.job.actual]
    assert len(below) <= 2
    assert all(group.requests["text"] > 0.96 * group.job.actual for group in below)


def test_horus_as_the_authors_compute_it_is_as_published_for_cnns(found: List[Group]) -> None:
    for group in found:
        if group.job.faketensor is not None and group.job.name != "inception_v3":
            # inception_v3 is timm's here, whose text shows other layers.
            assert group.answers["horus-authors"] == pytest.approx(group.job.horus, abs=100)


def test_the_table_has_a_line_for_each_job_and_each_estimator(found: List[Group]) -> None:
    lines = table(found)
    assert sum(line.startswith("vgg16 ") for line in lines) == 2
    for name in (*figures.PUBLISHED_BARS, *figures.OURS):
        assert any(line.split("  ")[0] == name for line in lines[20:]), name


def test_the_drawing_has_a_bar_for_each_answer_it_shows(found: List[Group]) -> None:
    drawn = ElementTree.fromstring(svg(found))
    titles = [element.text or "" for element in drawn.iter() if element.tag.endswith("title")]
    shown = ("GPUMemNet", "FakeTensor", "Horus", "text", "trace")
    assert len(titles) == sum(name in group.answers for group in found for name in shown)


def test_a_trace_that_was_not_collected_is_named(
    ground_truth: GroundTruth, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(figures, "UNSEEN", tmp_path)
    with pytest.raises(UsageError, match=r"lab\.unseen\.collect --only BERT_base"):
        groups(ground_truth)
