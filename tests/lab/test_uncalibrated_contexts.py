"""Requests for GPUs that nobody calibrated, if their contexts are those that were published."""

from __future__ import annotations

from typing import List

import pytest

from lab.score.environments import KNOWLEDGE, Played, documented, played, sample

EVERY = 120
NAMES = dict(documented())
NOTHING, _, LOADING = KNOWLEDGE


@pytest.fixture(scope="module")
def jobs() -> List[Played]:
    """Measured runs that play jobs on other machines."""
    return sample(EVERY)


@pytest.mark.parametrize("name", NAMES)
def test_without_calibration_a_request_holds_whichever_published_context_it_meets(
    name: str, jobs: List[Played]
) -> None:
    unknown = played(jobs, NAMES[name], NOTHING)
    assert unknown.count >= 20
    # Of so few, one is more than 3 %.
    assert unknown.under_request * unknown.count <= 1


@pytest.mark.parametrize("name", NAMES)
def test_who_knows_how_modules_are_loaded_has_the_peak_within_8_percent(
    name: str, jobs: List[Played]
) -> None:
    known = played(jobs, NAMES[name], LOADING)
    assert known.median_error <= 0.08
    assert known.under_request * known.count <= 1


def test_without_any_word_the_peak_is_that_of_most_documented_environments(jobs: List[Played]) -> None:
    within = [name for name, entry in NAMES.items() if played(jobs, entry, NOTHING).median_error <= 0.08]
    assert [name for name in NAMES if name not in within] == ["a100, lazy, 522 MiB"]
