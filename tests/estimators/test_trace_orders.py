"""Batches of many lengths, in other orders than the traced one."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Sequence

from slurm_gpumem.estimators.allocator_settings import DEFAULTS, allocator_settings
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.traced import orders
from slurm_gpumem.estimators.traced.estimator import estimate_trace
from slurm_gpumem.estimators.traced.learned import packaged
from slurm_gpumem.estimators.traced.orders import ORDERS, growth_by_order
from slurm_gpumem.estimators.traced.replay import replay
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.own import parse, to_json
from slurm_gpumem.summaries.trace_types import Phase, Site, Trace, TracedJob
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import MIB

TOKEN = 8 * 16
"""Bytes that a batch of 16 texts grows by for each token."""
LAYERS = 4
WEIGHT, GRADIENT = 0, 1


def texts(lengths: Sequence[int]) -> Trace:
    """Training on batches of these lengths: each layer keeps an activation until the backward pass, which
    makes a gradient beside it; the gradients of the weights are released by the next step."""
    sites = [Site((64 * MIB,), "parameter", "", "weights"), Site((64 * MIB,), "mm", "", "gradients")]
    events: List[int] = [WEIGHT]
    phases = [Phase(0, "setup", 0)]
    for step, length in enumerate(lengths, 1):
        number = len(sites)
        sites += [
            Site((length * TOKEN,), "copy", "", "inputs"),
            Site((length * TOKEN * 1024,), "mm", "layer", "activations"),
            Site((length * length * 640,), "bmm", "attention", "activations"),
        ]
        phases.append(Phase(len(events), "forward", step))
        # The gradient of the step before was its last allocation.
        events += [*([-1] if step > 1 else []), number, *[number + 1, number + 2] * LAYERS]
        phases.append(Phase(len(events), "backward", step))
        for layer in reversed(range(LAYERS)):
            # Its own gradient, then the two activations, which lie behind those of the layers after it.
            after = 2 * (LAYERS - 1 - layer) + (LAYERS - 1 - layer)
            events += [number + 1, -2 - after, -3 - after, -1]
        phases.append(Phase(len(events), "optimizer", step))
        events += [GRADIENT, -(3 * LAYERS + 2)]
    return Trace(TracedJob(batch=16), "meta", tuple(sites), tuple(events), tuple(phases))


LENGTHS = (300, 512, 340, 430, 390, 480, 310, 450)
VARIED = texts(LENGTHS)


def growth(trace: Trace, conf: str = "") -> Sequence[int]:
    settings = allocator_settings(conf) if conf else DEFAULTS
    return growth_by_order(trace, replay(trace, settings=settings).sizes, settings)


def test_the_trace_releases_what_it_takes() -> None:
    alive = [1 if value >= 0 else -1 for value in VARIED.events]
    assert sum(alive) == 2  # the weight and the last step's gradient


def test_reserved_memory_grows_where_lengths_come_in_other_orders() -> None:
    found = growth(VARIED)
    assert len(found) == ORDERS
    assert list(found) == sorted(found)
    assert found[-1] > 0


def test_an_order_that_was_not_traced_reserves_no_more_than_the_largest_that_was_played() -> None:
    own = replay(VARIED).stats.peak_reserved
    largest = own + growth(VARIED)[-1]
    ascending = replay(texts(sorted(LENGTHS))).stats.peak_reserved
    shuffled = replay(texts((300, 390, 340, 450, 310, 480, 430, 512))).stats.peak_reserved
    assert own < shuffled <= largest * 1.1
    assert own < ascending <= largest * 1.1


def test_batches_that_are_alike_add_nothing() -> None:
    assert growth(texts([512] * 8)) == ()


def test_a_last_batch_that_is_smaller_is_no_variety() -> None:
    assert growth(texts([512, 512, 512, 512, 512, 300])) == ()


def test_a_script_that_came_to_its_end_has_no_more_batches() -> None:
    assert growth(replace(VARIED, finished=True)) == ()


def test_a_summary_keeps_that_the_script_came_to_its_end() -> None:
    for finished in (True, False):
        trace = replace(VARIED, finished=finished)
        summary = ModelSummary(format="gpumem", layers=(), trace=trace)
        read = parse(to_json(summary), origin="here").trace
        assert read is not None
        assert read.finished is finished


def test_segments_that_grow_keep_it_low() -> None:
    assert growth(VARIED, "expandable_segments:True")[-1] < 0.5 * growth(VARIED)[-1]


def test_the_middle_order_counts_and_the_request_holds_for_the_largest() -> None:
    alone = estimate_trace(
        replace(VARIED, finished=True), TrainingJob(batch_size=16), find_gpu("h200"), packaged()
    )
    varied = estimate_trace(VARIED, TrainingJob(batch_size=16), find_gpu("h200"), packaged())
    found = growth(VARIED)
    assert varied.peak_mib == alone.peak_mib + max(0, found[ORDERS // 2]) // MIB
    assert varied.request_mib >= alone.peak_mib + found[-1] // MIB
    assert sum(varied.parts.values()) == varied.peak_mib
    assert any("batches of many lengths" in said for said in varied.assumptions)
    assert not any("batches of many lengths" in said for said in alone.assumptions)


def test_a_gradient_that_the_step_before_did_not_make_is_not_held_twice() -> None:
    """Layers that are left out by chance: the usual step makes a gradient that the one before it had not."""
    sites = [Site((64 * MIB,), "parameter", "", "weights")]
    events, phases = [0], [Phase(0, "setup", 0)]
    for step, length in enumerate((40, 40, 41, 42, 43, 44, 45), 1):
        sites += [
            Site((length * MIB,), "mm", "layer", "activations"),
            Site((64 * MIB,), "mm", "first", "gradients"),
            Site((200 * MIB,), "mm", "second", "gradients"),
        ]
        number = len(sites) - 3
        both = step % 2 == 0
        phases.append(Phase(len(events), "forward", step))
        # What the step before left: its last allocation, and the one before it if it made both.
        before = [] if step == 1 else [-1] if both else [-1, -2]
        events += [*before, *[number] * 10]
        phases.append(Phase(len(events), "backward", step))
        events += [number + 1, number + 2] if both else [number + 1]
        phases.append(Phase(len(events), "optimizer", step))
        events += [-at for at in range(3 if both else 2, 13 if both else 12)]
    trace = Trace(TracedJob(batch=1), "meta", tuple(sites), tuple(events), tuple(phases))
    blocks, changes = orders._read(trace)
    released = {change.block: change.step for change in changes if not change.taken}
    work = orders._work(4, blocks, changes, released)
    gone = [at for kind, at in work.moves if kind == orders._RELEASE_PREVIOUS]
    assert sorted(gone) == sorted(work.kept)
    assert len(gone) == 2
    assert growth(trace)
