"""Networks under cudnn.benchmark at memory limits: scores of stored rows."""

from __future__ import annotations

from lab.score import tries as score


def test_networks_under_a_limit_of_their_request_without_tries_are_as_fast_as_without_one() -> None:
    found = score.scored(score.measured(), score.requests())
    assert len(found) >= 10
    assert all(one.speed >= score.AS_FAST for one in found)
    assert all(one.without_tries <= 1.5 * one.needed for one in found)
    assert max(one.with_tries / one.needed for one in found) > 4
    assert "0 of" in score.table(found)[-1]
