"""Other ways to train the same model, as changes of its traced steps: each gives a trace to replay."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from slurm_gpumem.estimators.types import Estimate
from slurm_gpumem.summaries.trace_types import (
    BUCKET,
    BUCKET_CAP,
    NCCL,
    NCCL_FIRST_GROUP,
    PARAMETER,
    Phase,
    Site,
    Trace,
    ddp_buckets,
)
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import MIB

# A trace's events with their blocks by name, so that a changed training step can be written.


@dataclass
class Event:
    """One allocation (`site` is set) or release of a block."""

    block: int
    site: Optional[int]
    phase: str
    step: int

    @property
    def allocates(self) -> bool:
        """Whether the block is allocated here."""
        return self.site is not None


class Stream:
    """A mutable copy of a trace; `trace()` writes it back."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.sites: List[Site] = list(trace.sites)
        self._numbers: Dict[Site, int] = {site: at for at, site in enumerate(trace.sites)}
        self.events: List[Event] = []
        starts = list(trace.phases)
        at = 0
        block = 0
        for index, value in enumerate(trace.events):
            while at + 1 < len(starts) and starts[at + 1].event <= index:
                at += 1
            phase = starts[at]
            if value >= 0:
                self.events.append(Event(block, value, phase.name, phase.step))
                block += 1
            else:
                self.events.append(Event(block + value, None, phase.name, phase.step))
        self.blocks = block
        self.site_of: Dict[int, int] = {e.block: e.site for e in self.events if e.site is not None}

    def site(self, event: Event) -> Site:
        """Where an event's block was allocated."""
        return self.sites[self.site_of[event.block]]

    def new_block(self, site: int) -> int:
        """Another block of a site."""
        self.blocks += 1
        self.site_of[self.blocks] = site
        return self.blocks

    def add_site(self, site: Site) -> int:
        """The number of a site, which may be a new one."""
        if site not in self._numbers:
            self._numbers[site] = len(self.sites)
            self.sites.append(site)
        return self._numbers[site]

    def released_at(self) -> Dict[int, int]:
        """For each block the index of the event that releases it."""
        return {e.block: at for at, e in enumerate(self.events) if not e.allocates}

    def trace(self) -> Trace:
        """The stream as a trace again."""
        numbers: Dict[int, int] = {}
        events: List[int] = []
        phases: List[Phase] = []
        before: Tuple[str, int] = ("", -1)
        for event in self.events:
            if (event.phase, event.step) != before:
                before = (event.phase, event.step)
                phases.append(Phase(len(events), event.phase, event.step))
            if event.site is not None:
                numbers[event.block] = len(numbers)
                events.append(event.site)
            else:
                events.append(numbers[event.block] - len(numbers))
        if not phases or phases[0].event:
            phases.insert(0, self._trace.phases[0])
        # Where cached memory is given back is not known of a changed stream.
        return self._trace._replace(
            sites=tuple(self.sites), events=tuple(events), phases=tuple(phases), emptied=()
        )


_HELD = 2
"""Results that a line of a forward function holds at once: its operand and its result."""
_WITH_WEIGHTS = ("::mm", "::addmm", "::bmm", "::linear", "::convolution")
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"


def in_precision(summary: ModelSummary, precision: str) -> Tuple[ModelSummary, Tuple[str, ...]]:
    """A trace in single precision answers for autocast as well; then with a note that says so."""
    trace = summary.trace
    if trace is None or trace.job.precision not in ("fp32", "tf32") or not precision.startswith("amp-"):
        return summary, ()
    changed = autocast(trace)
    changed = changed._replace(job=changed.job._replace(precision=precision))
    note = (
        f"traced with {trace.job.precision}; {precision} follows autocast's list of operators. "
        f"gpumem summarize --precision {precision} traces it"
    )
    return summary._replace(trace=changed), (note,)


def checkpointed(trace: Trace, blocks: Mapping[str, int]) -> Trace:
    """The named layers keep only their input and output and are recomputed in the backward pass.

    `blocks` gives for each the number of elements that it returns at the traced batch size.
    """
    stream = Stream(trace)
    for step in sorted({e.step for e in stream.events if e.phase == BACKWARD}):
        for name, elements in blocks.items():
            _checkpoint(stream, name, elements, trace.job.batch, step)
    return stream.trace()


def _checkpoint(stream: Stream, name: str, elements: int, batch: int, step: int) -> None:
    events = stream.events
    inside = f"{name}."

    def belongs(event: Event) -> bool:
        module = stream.site(event).module
        return module == name or module.startswith(inside)

    forward = [
        at
        for at, e in enumerate(events)
        if e.step == step and e.phase == FORWARD and e.allocates and belongs(e)
    ]
    backward = [
        at
        for at, e in enumerate(events)
        if e.step == step and e.phase == BACKWARD and e.allocates and belongs(e)
    ]
    if not forward or not backward:
        return
    first, last, again = forward[0], forward[-1], backward[0]
    made = {events[at].block for at in forward if _is_computed(stream.site(events[at]))}
    released = stream.released_at()
    turn = next(at for at, e in enumerate(events) if e.step == step and e.phase == BACKWARD)
    kept = [events[at].block for at in forward if events[at].block in made]
    kept = [block for block in kept if released.get(block, turn) >= turn]
    output = _output(stream, kept, elements, batch)
    dropped = {block for block in kept if block != output}
    if not dropped:
        return
    again = min(again, *(released.get(block, again) for block in dropped))
    twins: Dict[int, int] = {block: stream.new_block(stream.site_of[block]) for block in made}
    # PyTorch stops recomputing once it has everything that was saved.
    end = max(at for at in forward if events[at].block in dropped)
    recomputed: List[Event] = []
    for event in events[first : end + 1]:
        if event.block in made:
            recomputed.append(Event(twins[event.block], event.site, BACKWARD, step))
    there = {e.block for e in recomputed if e.allocates} - {e.block for e in recomputed if not e.allocates}
    passing = there - {twins[block] for block in dropped}
    recomputed += [Event(block, None, BACKWARD, step) for block in sorted(passing)]
    before = _forward_without_saving(events[first : last + 1], dropped)
    after = [
        Event(twins[e.block], e.site, e.phase, e.step) if not e.allocates and e.block in dropped else e
        for e in events[again:]
    ]
    middle = [e for e in events[last + 1 : again] if e.block not in dropped]
    stream.events = [*events[:first], *before, *middle, *recomputed, *after]


def _forward_without_saving(events: Sequence[Event], dropped: Set[int]) -> List[Event]:
    """The block's forward pass when nothing is saved: a result is freed once the next two exist."""
    changed: List[Event] = []
    waiting: List[Event] = []
    for event in events:
        changed.append(event)
        if event.allocates and event.block in dropped:
            waiting.append(Event(event.block, None, event.phase, event.step))
            if len(waiting) > _HELD:
                changed.append(waiting.pop(0))
    return [*changed, *waiting]


def _output(stream: Stream, kept: Sequence[int], elements: int, batch: int) -> int:
    """The block that the next layer reads, which stays: the last one of the size that the layer returns."""
    sizes = {block: stream.sites[stream.site_of[block]].bytes_at(batch) for block in kept}
    fitting = [block for block in kept if sizes[block] in (4 * elements, 2 * elements)]
    if fitting:
        return fitting[-1]
    large = [block for block in kept if 8 * sizes[block] >= max(sizes.values(), default=0)]
    return large[-1] if large else -1


def _is_computed(site: Site) -> bool:
    """Whether recomputing a layer allocates it again: results and workspaces, but not a library's handle."""
    return site.category == "activations" or (site.category == "workspace" and not site.is_cublas)


def without_foreach(trace: Trace) -> Trace:
    """The optimizer processes one parameter after the other, so its temporaries are never alive together."""
    stream = Stream(trace)
    released = stream.released_at()
    events = stream.events
    transient = {
        e.block
        for at, e in enumerate(events)
        if e.phase == OPTIMIZER and e.allocates and _ends_in_same_phase(events, released.get(e.block), e)
    }
    changed: List[Event] = []
    waiting: List[Event] = []
    for event in events:
        if event.block not in transient:
            changed.append(event)
        elif event.allocates:
            changed.append(event)
            waiting.append(Event(event.block, None, event.phase, event.step))
            # A formula holds two intermediate results at a time.
            if len(waiting) > 2:
                changed.append(waiting.pop(0))
        if event.block in transient and not event.allocates:
            still = [e for e in waiting if e.block == event.block]
            for e in still:
                waiting.remove(e)
                changed.append(e)
    changed += waiting
    stream.events = changed
    return stream.trace()


def _ends_in_same_phase(events: Sequence[Event], released: object, event: Event) -> bool:
    if not isinstance(released, int):
        return False
    return events[released].phase == event.phase and events[released].step == event.step


def head_of(trace: Trace) -> str:
    """The last layer of the first forward pass that computes with weights; "" if there is none."""
    found = ""
    for event, _, site in trace.allocations():
        phase = trace.phase_of(event).name
        if phase == BACKWARD:
            break
        if phase == FORWARD and site is not None and site.module and site.operator.endswith(_WITH_WEIGHTS):
            found = site.module
    return found


def loss_in_parts(trace: Trace, head: str, parts: int) -> Trace:
    """The last layer and the loss run on a part of the batch at a time: their tensors shrink accordingly."""
    return _resized(trace, _head_sites(trace, head), parts)


def _head_sites(trace: Trace, head: str) -> Set[int]:
    """Sites of the last layer's output and of what is computed from it, in both directions."""
    batch = trace.job.batch
    logits = max(
        (s.bytes_at(batch) for s in trace.sites if s.module == head and s.category == "activations"),
        default=0,
    )
    found = set()
    for at, site in enumerate(trace.sites):
        near = site.module in (head, "")
        if near and site.category == "activations" and site.bytes_at(batch) * 3 >= logits > 0:
            found.add(at)
    return found


def _resized(trace: Trace, sites: Set[int], divisor: int) -> Trace:
    changed = tuple(
        site._replace(bytes=tuple(-(-c // divisor) for c in site.bytes)) if at in sites else site
        for at, site in enumerate(trace.sites)
    )
    return trace._replace(sites=changed)


_WIDE_OPERATORS = ("softmax", "norm", "loss", "exp", "log", "pow", "sum", "cumsum", "prod", "mean")
_HALF_NORMS = ("batch_norm", "cudnn_batch_norm")


def autocast(trace: Trace) -> Trace:
    """Activations in half precision except for operators that autocast keeps wide; casts of the weights."""
    halved: Set[int] = set()
    for at, site in enumerate(trace.sites):
        name = site.operator.rpartition("::")[2]
        wide = any(word in name for word in _WIDE_OPERATORS) and not any(word in name for word in _HALF_NORMS)
        if site.category == "activations" and not wide:
            halved.add(at)
    # The head's result exists in half precision, and again in single precision for the loss.
    head = head_of(trace)
    results = {at for at in halved if trace.sites[at].module == head}
    halved -= {at for at in results if trace.sites[at].operator.endswith(_WITH_WEIGHTS)}
    return _with_weight_casts(_resized(trace, halved, 2))


def _with_weight_casts(trace: Trace) -> Trace:
    """Half-precision copies of the weights live from each forward pass to its end."""
    stream = Stream(trace)
    weights = [e.site for e in stream.events if e.allocates and stream.site(e).category == "weights"]
    sites = [
        stream.add_site(
            Site(
                tuple(-(-c // 2) for c in stream.sites[w].bytes),
                "autocast",
                stream.sites[w].module,
                "activations",
            )
        )
        for w in weights
        if w is not None
    ]
    changed: List[Event] = []
    open_casts: List[Tuple[int, int]] = []
    before: Tuple[str, int] = ("", -1)
    for event in stream.events:
        now = (event.phase, event.step)
        if now != before:
            for block, step in open_casts:
                changed.append(Event(block, None, FORWARD, step))
            open_casts = []
            if event.phase == FORWARD:
                for site in sites:
                    block = stream.new_block(site)
                    changed.append(Event(block, site, FORWARD, event.step))
                    open_casts.append((block, event.step))
            before = now
        changed.append(event)
    stream.events = changed
    return stream.trace()


# From the trace of one process to that of one rank under DistributedDataParallel (PyTorch 2.13).
#
# Every rank has the whole model. Gradients are copied into buckets, which are reduced and copied back. The
# first step has one bucket for all of them; before the second it is replaced by buckets that are filled in
# the reverse order of the parameters, each closed when it has reached its size. When the model is wrapped,
# parameters are broadcast through flat copies of at most 250 MiB. NCCL's own memory was measured for a
# group of one process.

_BROADCAST = 250 * MIB


@lru_cache(maxsize=16)
def rank_trace(trace: Trace, ranks: int) -> Tuple[Trace, Tuple[str, ...]]:
    """The trace of one of several ranks, and what was assumed."""
    if not any(phase.name == "backward" for phase in trace.phases):
        return trace, ("every GPU holds the whole model",)
    if trace.job.ranks > 1 or any(site.operator == BUCKET for site in trace.sites):
        return trace, ("the script was traced as one of its ranks",)
    return _with_buckets(trace), (
        f"one of {ranks} ranks under DDP: computed, not measured",
        f"gradients beside buckets of {BUCKET_CAP // MIB} MiB (gradient_as_bucket_view is off)",
    )


def with_nccl(found: Estimate) -> Estimate:
    """The estimate of a rank whose buckets were counted from a summary, with NCCL's memory."""
    nccl = NCCL_FIRST_GROUP // MIB
    return found._replace(
        peak_mib=found.peak_mib + nccl,
        request_mib=found.request_mib + nccl,
        floor_mib=found.floor_mib + nccl,
        margin=found.margin._replace(requests=tuple(at + nccl for at in found.margin.requests)),
        parts={**found.parts, "workspace": found.parts["workspace"] + nccl},
    )


def _with_buckets(trace: Trace) -> Trace:
    stream = Stream(trace)
    size = {e.block: stream.site(e).bytes_at(trace.job.batch) for e in stream.events if e.allocates}
    weights = _weights(stream)
    buckets = ddp_buckets(_trained(stream, weights, size), BUCKET_CAP)
    events = stream.events
    first = next((at for at, event in enumerate(events) if event.phase != "setup"), len(events))
    second = next((at for at, event in enumerate(events) if event.step > 1), len(events))
    before, last = events[max(first - 1, 0)], events[second - 1]

    def take(nbytes: int, operator: str, category: str, at: Event) -> Event:
        site = stream.add_site(Site((max(nbytes, 1),), operator, "", category))
        return Event(stream.new_block(site), site, at.phase, at.step)

    def release(taken: Event, at: Event) -> Event:
        return Event(taken.block, None, at.phase, at.step)

    synced = sum(size[weight.block] for weight in weights)
    flat = take(min(synced, _BROADCAST), "ddp::broadcast", "workspace", before)
    whole = take(sum(buckets), BUCKET, "gradients", before)
    has_nccl = any(site.operator == NCCL for site in trace.sites)
    stream.events = [
        *events[:first],
        *([] if has_nccl else [take(NCCL_FIRST_GROUP, NCCL, "workspace", before)]),
        flat,
        release(flat, before),
        whole,
        *events[first:second],
        release(whole, last),
        *(take(bucket, BUCKET, "gradients", last) for bucket in buckets),
        *events[second:],
    ]
    return stream.trace()


def _weights(stream: Stream) -> List[Event]:
    """The allocations of the parameters; traces of earlier versions do not say which weights are some."""
    released = stream.released_at()
    kept = [event for event in stream.events if event.allocates and event.block not in released]
    return [event for event in kept if stream.site(event).operator == PARAMETER] or [
        event for event in kept if stream.site(event).category == "weights"
    ]


def _trained(stream: Stream, weights: Sequence[Event], size: Mapping[int, int]) -> List[int]:
    """Bytes of the parameters that get a gradient, in their order."""
    free: Dict[Tuple[str, int], List[int]] = {}
    for index, weight in enumerate(weights):
        free.setdefault((stream.site(weight).module, size[weight.block]), []).append(index)
    found: Set[int] = set()
    for event in stream.events:
        if not event.allocates or stream.site(event).category != "gradients":
            continue
        # Shared weights: their gradient is added up where they are used last.
        waiting = free.get((stream.site(event).module, size[event.block])) or next(
            (some for (_, other), some in free.items() if other == size[event.block] and some), []
        )
        if waiting:
            found.add(waiting.pop(0))
    return [size[weights[index].block] for index in sorted(found)]
