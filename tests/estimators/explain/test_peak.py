"""The peak of a step that can be counted by hand, and what changes of the step do to it."""

from __future__ import annotations

import pytest

from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.traced import changes
from slurm_gpumem.estimators.traced.advice import advice, timeline
from slurm_gpumem.estimators.traced.changes import Stream
from slurm_gpumem.estimators.traced.replay import replay
from slurm_gpumem.summaries.trace_types import Trace
from tests.estimators.explain.small_trace import BATCH, MIB, small_summary

GPU = find_gpu("h200")
SUMMARY = small_summary()
assert SUMMARY.trace is not None
TRACE = SUMMARY.trace
WEIGHTS, STATES = 144, 128
AT_LOSS = WEIGHTS + STATES + BATCH * (1 + 16 + 3 * 16)
"""MiB when the gradient of the loss appears: batch, four activations, logits, log-probabilities, gradient."""


def _allocated(trace: Trace) -> float:
    return replay(trace, None, GPU).stats.peak_allocated / MIB


def test_the_timeline_is_the_step_of_the_peak_with_its_phases() -> None:
    line = timeline(TRACE, BATCH, GPU)
    assert line.peak_bytes == AT_LOSS * MIB
    assert (line.step, line.peak_phase) == (2, "backward")
    assert [span.name for span in line.spans] == ["forward", "backward", "optimizer"]
    assert line.spans[-1].last == len(line.points)


def test_tensors_at_the_peak_are_those_alive_largest_first() -> None:
    line = timeline(TRACE, BATCH, GPU)
    assert sum(one.bytes * one.count for one in line.at_peak) == line.peak_bytes
    assert [one.bytes // MIB for one in line.at_peak[:4]] == [256, 256, 256, 64]
    assert {one.layer for one in line.at_peak if one.operator == "aten::relu"} == {"blocks.0.b", "blocks.1.b"}
    states = next(one for one in line.at_peak if one.category == "optimizer")
    assert (states.count, states.phase) == (2, "optimizer")


def test_a_stream_written_back_is_the_trace_it_was_read_from() -> None:
    assert Stream(TRACE).trace() == TRACE


def test_checkpointed_blocks_keep_their_output_only() -> None:
    blocks = {"blocks.0": BATCH * MIB, "blocks.1": BATCH * MIB}
    assert _allocated(changes.checkpointed(TRACE, blocks)) == AT_LOSS - 2 * BATCH * 4


def test_a_block_without_a_backward_pass_changes_nothing() -> None:
    assert changes.checkpointed(TRACE, {"elsewhere": 1}) == TRACE


def test_without_foreach_the_temporaries_do_not_pile_up() -> None:
    only_optimizer = timeline(changes.without_foreach(TRACE), 1, GPU)
    with_foreach = timeline(TRACE, 1, GPU)
    assert with_foreach.peak_phase == "optimizer"
    assert only_optimizer.peak_bytes <= with_foreach.peak_bytes
    assert changes.without_foreach(TRACE).events.count(17) == TRACE.events.count(17)


def test_a_loss_in_parts_divides_what_the_head_makes() -> None:
    assert _allocated(changes.loss_in_parts(TRACE, "head", 4)) == AT_LOSS - BATCH * 3 * 16 * 3 / 4


def test_autocast_halves_activations_but_not_the_softmax_and_adds_casts_of_weights() -> None:
    line = timeline(changes.autocast(TRACE), BATCH, GPU)
    sizes = {one.operator: one.bytes / MIB for one in line.at_peak if one.category == "activations"}
    assert sizes["aten::relu"] == BATCH * 2
    assert sizes["aten::_log_softmax_backward_data"] == BATCH * 16
    casts = [site for site in changes.autocast(TRACE).sites if site.operator == "autocast"]
    assert sorted(site.bytes for site in casts) == [(8 * MIB,), (32 * MIB,), (32 * MIB,)]


@pytest.mark.parametrize(
    "change",
    [
        lambda: changes.checkpointed(TRACE, {"blocks.0": BATCH * MIB}),
        lambda: changes.without_foreach(TRACE),
        lambda: changes.autocast(TRACE),
        lambda: changes.loss_in_parts(TRACE, "head", 4),
    ],
)
def test_a_changed_trace_still_releases_all_that_it_took(change: object) -> None:
    trace: Trace = change()  # type: ignore[operator]
    left = replay(trace, None, GPU).stats.allocated
    assert left == replay(TRACE, None, GPU).stats.allocated


def test_advice_names_the_changes_with_what_they_save() -> None:
    line = timeline(TRACE, BATCH, GPU)
    found = {one.name: one for one in advice(SUMMARY, BATCH, GPU, line)}
    assert set(found) >= {"half-batch", "amp", "loss-in-parts", "checkpoint"}
    assert found["loss-in-parts"].detail == ("head",)
    details = {one.detail for one in advice(SUMMARY, BATCH, GPU, line) if one.name == "checkpoint"}
    assert ("blocks.0", "blocks.1") in details
    saved = [one.saves_mib for one in advice(SUMMARY, BATCH, GPU, line)]
    assert saved == sorted(saved, reverse=True)
    assert all(size > 0 for size in saved)


def test_amp_is_not_offered_to_who_has_it() -> None:
    summary = small_summary("amp-bf16")
    assert summary.trace is not None
    line = timeline(summary.trace, BATCH, GPU)
    assert "amp" not in {one.name for one in advice(summary, BATCH, GPU, line)}
