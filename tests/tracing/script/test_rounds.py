"""The `range` and `enumerate` that a script's modules get."""

from __future__ import annotations

import copy
import pickle
from typing import Any, Dict

import pytest

from tests.support.needs import needs_torch

pytestmark = needs_torch


@pytest.fixture
def names() -> Dict[str, Any]:
    from slurm_gpumem.tracing.follow import loop_skipper

    nobody: Any = None
    ours = loop_skipper.Rounds(nobody, nobody, nobody, print)
    return {"range": ours.range, "enumerate": loop_skipper.kind_of_enumerate(ours)}


def test_a_module_s_names_are_saved_as_python_s_own(names: Dict[str, Any]) -> None:
    assert names["range"] is not range
    assert names["enumerate"] is not enumerate
    assert pickle.loads(pickle.dumps(names)) == {"range": range, "enumerate": enumerate}
    assert copy.deepcopy(names) == names


def test_they_make_what_python_s_own_make(names: Dict[str, Any]) -> None:
    assert names["range"](2, 9, 3) == range(2, 9, 3)
    numbered = names["enumerate"]([7], start=1)
    assert isinstance(numbered, names["enumerate"])
    assert list(numbered) == [(1, 7)]


def test_the_range_of_a_loop_is_saved_and_copied_as_python_s_own() -> None:
    from slurm_gpumem.tracing.follow.loop_skipper import Rounds, Watched

    nobody: Any = None
    watched = Watched(range(2, 9, 3), Rounds(nobody, nobody, nobody, print))
    for again in (pickle.loads(pickle.dumps(watched)), copy.copy(watched), copy.deepcopy([watched])[0]):
        assert type(again) is range
        assert again == range(2, 9, 3)
