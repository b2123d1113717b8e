from __future__ import annotations

from typing import List, Tuple

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.node.sampler.usage import MOST_STEPS, UsageCurve, curve_from


def test_a_curve_holds_the_most_of_each_step_and_the_mean_activity() -> None:
    curve = UsageCurve(100.0)
    for now, mib in ((100.2, 5.0), (100.7, 9.0), (102.1, 7.0)):
        curve.add_memory(now, mib)
    curve.add_activity(102.5, 0.5, 2.0)
    assert curve.text() == "100.0 1.0;9 - 7;- 50 50"


def test_a_long_run_has_no_more_steps_than_a_short_one() -> None:
    curve = UsageCurve(0.0)
    for second in range(10_000):
        curve.add_memory(float(second), float(second))
    when, memory, _ = curve.text().split(";")
    values = memory.split()
    assert len(values) <= MOST_STEPS
    assert when == "0.0 256.0"
    assert int(values[-1]) == 9999
    assert sorted(map(int, values)) == list(map(int, values))


@given(st.lists(st.tuples(st.floats(-50, 5000), st.floats(0, 1e5)), min_size=1, max_size=60))
def test_the_peak_is_never_lost_whatever_the_clock_does(looks: List[Tuple[float, float]]) -> None:
    curve = UsageCurve(0.0)
    for now, mib in looks:
        curve.add_memory(now, mib)
        curve.add_activity(now, 0.5, 3.0)
    words = curve.text().split(";")[1].split()
    assert len(words) <= MOST_STEPS
    assert max(int(word) for word in words if word != "-") == round(max(mib for _, mib in looks))


def test_a_sampler_goes_on_with_the_curve_of_the_one_before() -> None:
    curve = UsageCurve(100.0)
    curve.add_memory(101.5, 40.0)
    curve.add_activity(101.5, 0.3, 1.0)
    again = curve_from(curve.text())
    assert again is not None
    assert again.text() == curve.text()
    again.add_memory(103.2, 50.0)
    assert again.text().split(";")[1] == "- 40 - 50"
    for broken in ("", ";;", "1 0;1;", "x 1;1;1", "1 1 1;2;3", "1 1;2", "1 1;;"):
        assert curve_from(broken) is None
