"""Traces of known models in little space, and as the training that somebody asks about.

Millions of allocations fit into a few megabytes because networks repeat themselves. To let a compressor see
that, a trace is written without the names of layers, a release names its block by its place among the blocks
that are alive (the newest is -1), and the optimizer's part is left out: it is the same for all models, one
state after the other for each parameter, then lists of temporaries (`estimators/job/optimizers.py`).
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Tuple

from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.parsers.own import trace_content, trace_of
from slurm_gpumem.summaries.trace_types import CATEGORIES, Kernel, Site, Trace, TracedJob

_OPTIMIZER = "optimizer"
_LEFT_OUT = ("job", "modules", "events", "sites", "phases")
HALF = {"amp-fp16": "fp16", "amp-bf16": "bf16"}
STORED_AS = {"fp32": "fp32", "tf32": "fp32", "amp-fp16": "amp-bf16", "amp-bf16": "amp-bf16", "bf16": "bf16"}
"""Which stored trace answers for a precision: the two kinds of AMP allocate the same."""


def encode(trace: Trace) -> Dict[str, Any]:
    """A trace as few different numbers."""
    sites, numbers = _merged(trace)
    content = trace_content(trace._replace(sites=tuple(sites), events=()))
    alive: List[int] = []
    events: List[int] = []
    phases: List[Tuple[int, str, int]] = []
    starts = {phase.event: phase for phase in trace.phases}
    block, skipped, now = 0, set(), trace.phases[0]
    for index, value in enumerate(trace.events):
        if index in starts:
            now = starts[index]
            phases.append((len(events), now.name, now.step))
        if value >= 0:
            if now.name == _OPTIMIZER:
                skipped.add(block)
            else:
                events.append(numbers[value])
                alive.append(block)
            block += 1
        elif block + value in skipped:
            skipped.remove(block + value)
        else:
            # Most that is released is young.
            place = next(back for back in range(1, len(alive) + 1) if alive[-back] == block + value)
            events.append(-place)
            del alive[-place]
    found = {name: value for name, value in content.items() if name not in _LEFT_OUT}
    found["sites"] = [[row[0], row[1], *row[3:]] for row in content["sites"]]
    return {**found, "phases": phases, "events": events}


def parameters(trace: Trace) -> List[int]:
    """Elements of each trainable parameter in the optimizer's order, from a trace with Adam's two states."""
    width = 2 if trace.job.precision == "bf16" else 4
    begins = [phase.event for phase in trace.phases] + [len(trace.events)]
    at = next(at for at, phase in enumerate(trace.phases) if phase.name == _OPTIMIZER)
    sites = [trace.sites[value] for value in trace.events[begins[at] : begins[at + 1]] if value >= 0]
    states = [site.bytes[0] for site in sites if site.operator.endswith("zeros_like")]
    pairs = list(zip(states[::2], states[1::2]))
    if len(states) % 2 or any(one != two for one, two in pairs):
        raise ValueError("the optimizer's states are not two for each parameter")
    return [one // width for one, _ in pairs]


def decode(content: Mapping[str, Any], params: Sequence[int], batch: int, job: TrainingJob) -> Trace:
    """The trace for a job's optimizer and precision; ValueError and the like where something is damaged."""
    rule, width = job.optimizer_rule, job.weight_bytes
    traced = TracedJob(batch, optimizer=job.optimizer, precision=job.precision)
    sites = [[row[0], row[1], 0, *row[2:]] for row in content["sites"]]
    of_size: Dict[int, int] = {}
    for count in params:
        if count not in of_size:
            of_size[count] = len(sites)
            sites.append([[count * width], len(content["operators"]), 0, CATEGORIES.index(_OPTIMIZER)])
    updates = [of_size[count] for count in params]
    starts: Dict[int, List[Tuple[str, int]]] = {}
    for event, name, step in content["phases"]:
        starts.setdefault(event, []).append((name, step))
    events: List[int] = []
    phases: List[Tuple[int, str, int]] = []
    alive: List[int] = []
    block, first = 0, True
    for index, value in enumerate([*content["events"], None]):
        for name, step in starts.get(index, ()):
            phases.append((len(events), name, step))
            if name == _OPTIMIZER:
                states = [site for site in updates for _ in range(rule.states)] if first else []
                passing = updates * rule.temporaries
                # A list releases its members from the last to the first.
                events += [*states, *passing, *range(-1, -len(passing) - 1, -1)]
                block += len(states) + len(passing)
                first = False
        if value is None:
            break
        if value >= 0:
            alive.append(block)
            events.append(value)
            block += 1
        else:
            events.append(alive.pop(value) - block)
    document = {
        **content,
        "job": {"batch": batch},
        "operators": [*content["operators"], f"optimizer::{job.optimizer}"],
        "modules": [""],
        "sites": sites,
        "events": events,
        "phases": [list(phase) for at, phase in enumerate(phases) if not _is_empty(phases, at, len(events))],
    }
    trace = trace_of(document)._replace(job=traced)
    return _half(trace, HALF[job.precision]) if job.amp else trace


def _is_empty(phases: Sequence[Tuple[int, str, int]], at: int, events: int) -> bool:
    return phases[at][0] == (phases[at + 1][0] if at + 1 < len(phases) else events)


def _merged(trace: Trace) -> Tuple[List[Site], List[int]]:
    """Sites without their layers, each once, and their numbers for the trace's; the optimizer's too."""
    places: Dict[Site, int] = {}
    numbers = []
    for site in trace.sites:
        plain = site._replace(module="")
        numbers.append(places.setdefault(plain, len(places)))
    return list(places), numbers


def _half(trace: Trace, dtype: str) -> Trace:
    """The same step with the other type of half precision."""

    def changed(site: Site) -> Site:
        conv = site.convolution
        if conv is None or conv.dtype not in HALF.values() or conv.dtype == dtype:
            return site
        return site._replace(convolution=conv._replace(dtype=dtype))

    def moved(kernel: Kernel) -> Kernel:
        return kernel._replace(dtype=dtype) if kernel.dtype in HALF.values() else kernel

    return trace._replace(
        sites=tuple(changed(site) for site in trace.sites),
        kernels=tuple(moved(kernel) for kernel in trace.kernels),
    )
