"""Batches of many lengths: what a request adds for fragmentation."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Sequence

from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.traced.estimator import estimate_trace
from slurm_gpumem.estimators.traced.fragmentation import GROWTH, varies
from slurm_gpumem.estimators.types import Estimate, TrainingJob
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


def test_the_trace_releases_what_it_takes() -> None:
    alive = [1 if value >= 0 else -1 for value in VARIED.events]
    assert sum(alive) == 2  # the weight and the last step's gradient


def test_batches_that_are_alike_add_nothing() -> None:
    assert varies(VARIED)
    assert not varies(texts([512] * 8))


def test_a_last_batch_that_is_smaller_is_no_variety() -> None:
    assert not varies(texts([512, 512, 512, 512, 512, 512, 300]))


def test_a_script_that_came_to_its_end_has_no_more_batches() -> None:
    assert not varies(replace(VARIED, finished=True))


def test_a_summary_keeps_that_the_script_came_to_its_end() -> None:
    for finished in (True, False):
        trace = replace(VARIED, finished=finished)
        summary = ModelSummary(format="gpumem", layers=(), trace=trace)
        read = parse(to_json(summary), origin="here").trace
        assert read is not None
        assert read.finished is finished


def estimated(trace: Trace, conf: str = "") -> Estimate:
    job = TrainingJob(batch_size=16, alloc_conf=conf)
    return estimate_trace(trace, job, find_gpu("h200"))


def test_the_request_has_room_for_other_orders_and_the_peak_is_the_traced_one() -> None:
    alone, varied = estimated(replace(VARIED, finished=True)), estimated(VARIED)
    room = round(GROWTH * (alone.peak_mib - alone.parts["context"]))
    assert room > 0
    assert varied.peak_mib == alone.peak_mib
    assert varied.request_mib == alone.request_mib + room
    assert any("batches of many lengths" in said for said in varied.assumptions)
    assert not any("batches of many lengths" in said for said in alone.assumptions)


def test_segments_that_grow_need_no_such_room() -> None:
    conf = "expandable_segments:True"
    assert estimated(VARIED, conf).request_mib == estimated(replace(VARIED, finished=True), conf).request_mib
