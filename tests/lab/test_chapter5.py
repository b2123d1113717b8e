from __future__ import annotations

from typing import Any

import pytest

from lab.chapter5.published import FIGURES, LIGHT, SAID
from lab.chapter5.unseen import GB, rows
from slurm_gpumem.units import MIB

BY_KEY = {(row.model, row.batch): row for row in rows(FIGURES)}


@pytest.mark.parametrize("said", [one for one in SAID if one.estimator != "horus-authors"])
def test_others_are_as_far_off_here_as_the_text_says(said: Any) -> None:
    row = BY_KEY[said.model, said.batch]
    assert (row.peaks[said.estimator] - row.measured) * MIB / GB == pytest.approx(said.gb, abs=1.2)


def test_a_fit_without_the_model_answers_something_else() -> None:
    for row in BY_KEY.values():
        assert row.answers["corrected"] != row.answers["corrected unseen"]
        # What a trace says of tensors was fitted on nothing.
        assert row.answers["trace"].peak == row.answers["trace unseen"].peak
        assert row.answers["trace"].request != row.answers["trace unseen"].request


def test_light_models_are_mostly_the_context_of_that_machine() -> None:
    for row in rows(LIGHT):
        assert row.answers["trace"].peak == pytest.approx(row.measured, rel=0.03)
