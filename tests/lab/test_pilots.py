"""When a peak counts as steady, and how often it grew afterwards."""

from __future__ import annotations

from typing import List

from lab.pilots import Mark, beyond, first_evaluation, marks_of, row, steady
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.summaries.trace_types import Phase, Site, Trace, TracedJob
from slurm_gpumem.units import MIB


def training(*peaks: int) -> List[Mark]:
    """A step for each, after a setup."""
    return [Mark("setup", 0, 600), *(Mark("backward", step, peak) for step, peak in enumerate(peaks, 1))]


def test_a_peak_is_steady_after_whole_steps_without_growth() -> None:
    assert steady(training(1000, 1100, 1100, 1100, 1500), 2) == 1100
    assert steady(training(1000, 1100, 1100, 1500), 2) is None  # one step only, then it grows
    assert steady(training(1000, 1100, 1100), 1) is None  # nothing shows what comes after it
    assert steady([Mark("setup", 0, 600)] * 9, 1) is None  # no training yet


def test_a_rule_may_wait_as_long_as_the_peak_took_to_get_there() -> None:
    marks = training(1000, 1000, 1100, 1100, 1100, 1100, 1100, 1300, 1300)
    assert steady(marks, 2) == 1100
    assert steady(marks, 2, more=1) == 1100
    assert steady(marks, 2, more=2) is None


def test_in_a_real_first_epoch_the_peak_is_steady_before_the_evaluation() -> None:
    marks = [*training(1000, 1100, 1100), Mark("evaluate", 4, 2000), Mark("backward", 4, 2000)]
    assert steady(marks, 5) is None
    assert steady(marks, 5, epoch=True) == 1100
    grows = [*training(1000, 1100), Mark("evaluate", 3, 2000), Mark("later", 4, 2000)]
    assert steady(grows, 5, epoch=True) is None  # no step without growth before it


def test_passes_without_gradients_in_each_step_are_no_evaluation() -> None:
    rollouts = [mark for step in (1, 2, 3) for mark in (Mark("evaluate", step, 9), Mark("backward", step, 9))]
    assert first_evaluation(rollouts) is None
    later = [*rollouts, Mark("backward", 4, 9), Mark("evaluate", 5, 9)]
    assert first_evaluation(later) == len(later) - 1


def test_a_line_counts_what_grew_and_what_the_margin_does_not_hold() -> None:
    some = [(1000, training(1000, peak)) for peak in (1000, 1100, 1200, 1300)]
    assert [beyond(*pair) for pair in some] == ["", "", "", "backward"]
    assert row("2 steps", [*some, (None, training(1))]).split() == [
        *("2", "steps", "4", "75.0%", "20.0%", "30%", "1", "25.0%"),
    ]
    assert row("none", []).split() == ["none", "0", "0.0%", "0.0%", "0%", "0", "0.0%"]


def test_marks_are_peaks_of_the_process_and_survive_an_empty_cache() -> None:
    sites = tuple(Site((size * MIB,), "", "", "activations") for size in (100, 300, 350))
    phases = (Phase(0, "setup", 0), Phase(1, "backward", 1), Phase(3, "evaluate", 2))
    trace = Trace(TracedJob(1), "meta", sites, (0, 1, -1, 2, -1), phases, emptied=(3,))
    gpu = find_gpu("h200")
    context = gpu.context_for(conv=False, matmul=False)
    assert marks_of(trace, gpu) == [
        Mark("setup", 0, context),
        Mark("setup", 0, context + 100),
        Mark("backward", 1, context + 400),
        Mark("evaluate", 2, context + 450),  # 750 if the 300 were still kept
        Mark("later", 3, context + 450),
    ]
