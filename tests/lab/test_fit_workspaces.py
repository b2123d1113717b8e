"""The fit of cuDNN's workspaces: what it makes of measured operators, and what it says without numpy."""

from __future__ import annotations

from lab.probe.measured_calls import _beyond


def test_a_workspace_is_what_is_held_beside_the_results() -> None:
    assert _beyond([100, 7, -7], [100]) == [0, 7]
    assert _beyond([30, 5, -5, 20, 9, 4, -9, -4], [30, 20]) == [0, 5, 13]


def test_a_call_that_made_other_results_is_left_out() -> None:
    assert _beyond([100], [50]) is None
    assert _beyond([50, 3], [50]) is None
