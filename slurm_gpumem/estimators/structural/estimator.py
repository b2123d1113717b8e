"""Put the parts together: from a summary and a job to an `Estimate`."""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, List, NamedTuple, Sequence, Tuple

from slurm_gpumem.estimators.allocator.allocator import FREE, AllocatorStats, CachingAllocator
from slurm_gpumem.estimators.allocator.allocator_settings import (
    DEFAULTS,
    AllocatorSettings,
    allocator_settings,
)
from slurm_gpumem.estimators.allocator.tape import Tape
from slurm_gpumem.estimators.structural.blocks import expand_hidden
from slurm_gpumem.estimators.structural.layers import loss
from slurm_gpumem.estimators.structural.modules import run_all
from slurm_gpumem.estimators.structural.shapes import with_shapes
from slurm_gpumem.estimators.structural.stream import (
    ACTIVATIONS,
    BASE,
    FLOWING,
    GRADIENTS,
    GRADS,
    OPTIMIZER,
    OTHER_STEP,
    RANGE,
    STATES,
    WEIGHTS,
    WORK,
    WORKSPACE,
    Events,
    Stream,
)
from slurm_gpumem.estimators.structural.tree import build_tree
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.estimators.versions import FOREACH, GRADIENTS_FREED, follows
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import MIB

# From a tape to the allocator's events: parameters, then steps of forward, backward and optimizer.

_LARGEST = 1 << 42
"""Bytes in all tensors of a step up to which the allocator is simulated byte by byte."""

_AT_ONCE = 2
"""Intermediate results that a formula over one parameter holds: its operand and its result."""


class StepPlan(NamedTuple):
    """What determines a step besides the tape."""

    states: int
    """Copies of the parameters that the optimizer keeps."""
    temporaries: int
    """Copies that its step needs temporarily."""
    cublas_workspace: int
    accumulation: int = 1
    data_parallel: bool = False
    steps: int = 2
    keeps_gradients: bool = False
    """Gradients are set to zero between steps, not released (PyTorch before 2.0)."""
    allocator: AllocatorSettings = DEFAULTS
    foreach: bool = True
    """The optimizer's temporaries exist for all parameters at once."""


class Replay(NamedTuple):
    """The allocator's result for the stream, and what was alive at its peak."""

    stats: AllocatorStats
    at_peak: Dict[int, int]
    """Bytes by category at the moment of peak_allocated."""
    phase: str
    """The phase of the peak: forward, backward or optimizer."""


def replay(tape: Tape, plan: StepPlan) -> Replay:
    """Run `plan.steps` training steps through the caching allocator."""
    events: Events = []
    phases: List[Tuple[int, str]] = [(0, "setup")]
    events += enumerate(tape.params)
    events += enumerate(tape.frozen, len(tape.params))
    if plan.data_parallel:
        events += enumerate(tape.params, GRADS + len(tape.params))
    stream = Stream(tape)
    keep: Events = []
    passes = 0
    for step in range(plan.steps):
        if step and not plan.keeps_gradients:
            events += [(GRADS + index, FREE) for index in range(len(tape.params))]
        for micro in range(min(plan.accumulation, 2)):
            base = BASE + (OTHER_STEP if passes % 2 else 0)
            first = passes == 0
            passes += 1
            phases.append((len(events), "forward"))
            events += [(base + store, tape.sizes[store]) for store in tape.inputs]
            events += [(key, FREE) for key, kind in keep if kind == 0]
            at = len(events) + stream.forward_matmul if stream.forward_matmul >= 0 else -1
            events += [(key + base if key < RANGE else key, size) for key, size in stream.forward]
            # The loop's variable releases the previous step's output when the model returns the new one.
            replaced = [(key, FREE) for key, kind in keep if kind == 1]
            returned = len(events) - len(stream.forward) + stream.returned if stream.returned >= 0 else None
            if returned is None:
                events += replaced
            else:
                events[returned:returned] = replaced
            if first and at >= 0 and plan.cublas_workspace:
                events.insert(at, (WORK + OTHER_STEP, plan.cublas_workspace))
            phases.append((len(events), "backward"))
            at = len(events) + stream.backward_matmul if stream.backward_matmul >= 0 else -1
            if micro or (step and plan.keeps_gradients):
                events += _accumulating(stream.backward, base)
            else:
                events += [(key + base if key < RANGE else key, size) for key, size in stream.backward]
            if first and at >= 0 and plan.cublas_workspace:
                events.insert(at, (WORK + OTHER_STEP + 1, plan.cublas_workspace))
            keep = [(base + store, 0) for store in tape.inputs]
            keep += [(base + store, 1) for store in stream.survivors]
        phases.append((len(events), "optimizer"))
        events += _update(tape.params, plan, first=step == 0)
    stats = _play(events, sum(tape.sizes) + sum(tape.params), plan.allocator)
    phase = [name for start, name in phases if start <= stats.peak_event][-1]
    return Replay(stats, _alive(events, stats.peak_event), phase)


def _play(events: Events, total: int, settings: AllocatorSettings) -> AllocatorStats:
    """Replay; sizes beyond any GPU (a badly guessed input) are simulated at a smaller scale."""
    scale = max(1, total // _LARGEST)
    if scale > 1:
        events = [(key, size // scale if size > 0 else size) for key, size in events]
    allocator = CachingAllocator(settings)
    allocator.replay(events)
    stats = allocator.stats()
    if scale == 1:
        return stats
    return stats._replace(
        **{
            name: getattr(stats, name) * scale
            for name in ("allocated", "reserved", "peak_allocated", "peak_reserved")
        },
    )


def _accumulating(backward: Events, base: int) -> Events:
    """A backward pass whose parameter gradients are added to existing ones."""
    events: Events = []
    for key, size in backward:
        if GRADS <= key < STATES:
            passing = key - GRADS + WORK + FLOWING
            events += [(passing, size), (passing, FREE)]
        else:
            events.append((key + base if key < RANGE else key, size))
    return events


def _update(params: Sequence[int], plan: StepPlan, *, first: bool) -> Events:
    """The optimizer's step: states at the first one, and the temporaries of its foreach operations."""
    events: Events = []
    if first:
        for index, size in enumerate(params):
            events += [(STATES + index * 8 + state, size) for state in range(plan.states)]
    temporaries = list(enumerate(list(params) * plan.temporaries, STATES + OTHER_STEP))
    if not plan.foreach:
        held = range(_AT_ONCE if plan.temporaries else 0)
        for size in params:
            one = [(STATES + OTHER_STEP + number, size) for number in held]
            events += one + [(key, FREE) for key, _ in one]
        return events
    events += temporaries
    # A list releases its members from the last to the first.
    events += [(key, FREE) for key, _ in reversed(temporaries)]
    return events


def _alive(events: Events, last: int) -> Dict[int, int]:
    result = dict.fromkeys(range(5), 0)
    # Only the last event of each key counts.
    for key, size in dict(events[: last + 1]).items():
        if size != FREE:
            result[key // RANGE] += -(-size // 512) * 512
    return result


_MARGIN_SHOWN = 0.18
"""Every layer is in the summary: torchinfo with depth=20, torchsummary.

The margins are at least the 90th percentiles of (real - peak) / peak, rounded up, over runs measured on an
H200 of the models whose name has sha1(name) % 3 != 0: that share of those runs stayed within its request."""
_MARGIN_HIDDEN = 0.25
"""Blocks stand without their inner layers, or the table is cut off."""
_MARGIN_SHAPELESS = 1.2
"""No shapes at all: print(model)."""
_CATEGORIES = (
    ("weights", WEIGHTS),
    ("gradients", GRADIENTS),
    ("optimizer", OPTIMIZER),
    ("activations", ACTIVATIONS),
    ("workspace", WORKSPACE),
)


def estimate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """The process's GPU memory when the summarized model is trained as `job` says."""
    return estimate_with(summary, job, gpu)[0]


def estimate_with(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Tuple[Estimate, Walk, Replay]:
    """The estimate and what it was made from, for the learned correction."""
    walk, result = simulate(summary, job, gpu)
    context = gpu.context_for(conv=walk.uses_conv, matmul=walk.uses_matmul)
    parts = _parts(result, context)
    peak = sum(parts.values())
    floor = peak - parts["fragmentation"]
    found = Estimate(
        peak_mib=peak,
        request_mib=round(peak * (1 + _margin(summary, walk))),
        floor_mib=floor,
        parts=parts,
        estimator="structural",
        gpu=gpu.name,
        job=job,
        warnings=summary.warnings,
        assumptions=_assumptions(walk, result),
    )
    return found, walk, result


@lru_cache(maxsize=32)
def rebuild(summary: ModelSummary, job: TrainingJob) -> Walk:
    """The training step that a summary's rows stand for, as a tape of operations.

    Memory, utilization and the batch sizes of a curve ask for the same few steps, each rebuilt once.
    """
    assumed = ""
    if not summary.has_shapes:
        summary, assumed = with_shapes(summary)
    summary = _without_losses(summary)
    walk = Walk(summary, job)
    if assumed:
        walk.assume(f"the summary has no shapes; assumed input: {assumed}")
    tree = build_tree(summary)
    walk.has_guesses = expand_hidden(summary, tree)
    if walk.has_guesses:
        walk.assume("blocks shown without their layers are made of the usual ones for their class and size")
    loss.start(walk, tree)
    run_all(walk, tree)
    loss.finish(walk)
    walk.param_rest()
    walk.tape.close()
    return walk


def _without_losses(summary: ModelSummary) -> ModelSummary:
    """A model that computes its own loss returns it first; the step goes on from the tensors after it."""
    if not any(len(layer.outputs) > 1 and () in layer.outputs for layer in summary.layers):
        return summary
    rows = summary.layers
    layers = tuple(row._replace(outputs=tuple(filter(None, row.outputs)) or row.outputs) for row in rows)
    return summary._replace(layers=layers)


def simulate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Tuple[Walk, Replay]:
    """Rebuild the training step and replay it; for estimates, tests and the documentation's example."""
    walk = rebuild(summary, job)
    rule = job.optimizer_rule
    plan = StepPlan(
        states=rule.states,
        temporaries=rule.temporaries,
        cublas_workspace=gpu.cublas_workspace_bytes if walk.uses_matmul else 0,
        accumulation=job.grad_accumulation,
        data_parallel=job.gpus > 1,
        allocator=allocator_settings(job.alloc_conf),
        keeps_gradients=not follows(GRADIENTS_FREED, job.torch),
        foreach=follows(FOREACH, job.torch) or not rule.by_pytorch,
    )
    return walk, replay(walk.tape, plan)


def _margin(summary: ModelSummary, walk: Walk) -> float:
    """What to ask for beyond the peak, as a share of it; it grows with what had to be inferred."""
    if not summary.has_shapes:
        return _MARGIN_SHAPELESS
    return _MARGIN_HIDDEN if walk.has_guesses or not summary.complete else _MARGIN_SHOWN


def _parts(result: Replay, context: int) -> Dict[str, int]:
    stats = result.stats
    parts = {name: round(result.at_peak[category] / MIB) for name, category in _CATEGORIES}
    parts["fragmentation"] = max(0, round(stats.peak_reserved / MIB) - sum(parts.values()))
    parts["context"] = context
    return parts


def _assumptions(walk: Walk, result: Replay) -> Tuple[str, ...]:
    when = {
        "forward": "in the forward pass",
        "backward": "in the backward pass",
        "optimizer": "in the optimizer's step",
    }
    found: List[str] = list(walk.assumptions)
    if result.phase in when:
        found.append(f"the peak falls {when[result.phase]}; the parts are what is alive then")
    return tuple(found)
