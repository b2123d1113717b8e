"""Networks under cudnn.benchmark at memory limits: the search for the smallest, scores of stored rows."""

from __future__ import annotations

from typing import Any, Dict, List

import pytest

from lab.tries import score

torch = pytest.importorskip("torch")

from lab.tries import measure  # noqa: E402 - it imports torch

NEEDED, CONTEXT = 5200, 600
FREE = {
    "speed": 10.0,
    "process_mib": 5000 + CONTEXT,
    "reserved_mib": 5000,
    "peak_reserved_mib": 20000,
    "steady_reserved_mib": 4400,
}


def _answered(before: List[Dict[str, Any]], request: int) -> List[Dict[str, Any]]:
    """The rows of a network that needs NEEDED to be fast."""
    plan, rows = measure.points("unet", request, False, before), []
    try:
        point = next(plan)
        while True:
            fast = point.limit_mib is None or point.limit_mib >= NEEDED
            rows.append({**point._asdict(), **FREE, "speed": 10.0 if fast else 7.0})
            point = plan.send(rows[-1])
    except StopIteration:
        return rows


@pytest.mark.parametrize("request_mib", [4000, 5500, 9000])
def test_the_smallest_limit_with_full_speed_is_found_between_two_steps_of_the_ladder(
    request_mib: int,
) -> None:
    rows = _answered([], request_mib)
    (found,) = score.scored(rows, {"unet": (22000, request_mib)})
    assert NEEDED <= found.needed <= NEEDED * 1.06
    assert found.tried == 20000 + CONTEXT
    again = _answered(rows[:3], request_mib)
    assert [row["limit_mib"] for row in again] == [row["limit_mib"] for row in rows[3:]]


def test_networks_under_a_limit_of_their_request_without_tries_are_as_fast_as_without_one() -> None:
    found = score.scored(score.measured(), score.requests())
    assert len(found) >= 10
    assert all(one.speed >= score.AS_FAST for one in found)
    assert all(one.without_tries <= 1.5 * one.needed for one in found)
    assert max(one.with_tries / one.needed for one in found) > 4
    assert "0 of" in score.table(found)[-1]
