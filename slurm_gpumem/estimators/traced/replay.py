"""Play a trace through the caching allocator, for one batch size and GPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from slurm_gpumem.estimators.allocator.allocator import FREE, AllocatorStats, CachingAllocator, Event
from slurm_gpumem.estimators.allocator.allocator_settings import DEFAULTS, AllocatorSettings
from slurm_gpumem.estimators.types import Gpu
from slurm_gpumem.estimators.workspaces.benchmark import skipped_bytes, tried_bytes
from slurm_gpumem.estimators.workspaces.convolutions import reduction_bytes, workspace_bytes
from slurm_gpumem.summaries.trace_types import Convolution, Phase, Site, Trace, evaluate
from slurm_gpumem.units import MIB

# Steps beyond those of a trace: what comes after the last one, if training goes on like this.
#
# Reserved memory may still grow in the fourth or fifth step, when blocks lie where others used to be. A trace
# has two or three steps; more of them repeat the last one, except that they release what the one before them
# left.

_Place = Tuple[str, int, int]
"""Phase of an allocation, its operator, layer and category as a number, and which of such in its step."""


def further_step(trace: Trace) -> Optional[List[int]]:
    """The events of one step more, as `Trace.events`; None where the last two steps differ too much."""
    last = max(phase.step for phase in trace.phases)
    first = next(phase.event for phase in trace.phases if phase.step == last)
    if last < 2:
        return None
    places, gone = _places(trace), _released(trace)
    begin = sum(value >= 0 for value in trace.events[:first])
    again = {place: block for block, (step, place) in enumerate(places) if step == last and block not in gone}
    events: List[int] = []
    before, now = begin, len(places)
    for value in trace.events[first:]:
        if value >= 0:
            events.append(value)
            before += 1
            now += 1
            continue
        block = before + value
        if block >= begin:
            # Of the step's own: as far back as it was.
            events.append(value)
            continue
        step, place = places[block]
        if step != last - 1 or place not in again:
            return None
        events.append(again[place] - now)
    # A step that does not release as much as it takes would go on growing.
    return events if now - len(places) == len(events) / 2 else None


def _released(trace: Trace) -> Set[int]:
    """Blocks that no longer live when the trace ends."""
    found, block = set(), 0
    for value in trace.events:
        if value >= 0:
            block += 1
        else:
            found.add(block + value)
    return found


def _places(trace: Trace) -> List[Tuple[int, _Place]]:
    """Of each block in the order of allocation: its step and its place in it."""
    numbers: Dict[Tuple[str, str, str], int] = {}
    numbers_of_sites = [
        numbers.setdefault((site.operator, site.module, site.category), len(numbers)) for site in trace.sites
    ]
    found: List[Tuple[int, _Place]] = []
    ends = [phase.event for phase in trace.phases[1:]] + [len(trace.events)]
    counts: Dict[Tuple[int, str], List[int]] = {}
    for (begin, name, step), end in zip(trace.phases, ends):
        seen = counts.setdefault((step, name), [0] * len(numbers))
        for value in trace.events[begin:end]:
            if value >= 0:
                number = numbers_of_sites[value]
                seen[number] += 1
                found.append((step, (name, number, seen[number])))
    return found


# Memory by stream: PyTorch's allocator gives a block only to the stream that it was first allocated for.


class StreamPools(CachingAllocator):
    """A caching allocator for each stream; what is allocated is counted together."""

    def __init__(self, settings: AllocatorSettings, trace: Trace, further: Sequence[int]) -> None:
        super().__init__(settings)
        self._settings = settings
        self._first = _streams(trace, trace.events)
        self._again = _streams(trace, further)
        self._pools: Dict[int, CachingAllocator] = {}

    def replay(self, events: Iterable[Event]) -> None:
        """Play events whose keys are the numbers of the trace's blocks, further steps' after them."""
        parts: Dict[int, List[Event]] = {}
        listed = list(events)
        for event in listed:
            parts.setdefault(self._stream(int(event[0])), []).append(event)  # type: ignore[call-overload]
        for stream, part in parts.items():
            self._pools.setdefault(stream, CachingAllocator(self._settings)).replay(part)
        super().replay(listed)

    def _stream(self, block: int) -> int:
        if block < len(self._first):
            return self._first[block]
        return self._again[(block - len(self._first)) % len(self._again)]

    def stats(self) -> AllocatorStats:
        """The figures up to now: segments never go back, so that the pools' largest sizes add up."""
        pools = [pool.stats() for pool in self._pools.values()]
        return (
            super()
            .stats()
            ._replace(
                reserved=sum(one.reserved for one in pools),
                peak_reserved=sum(one.peak_reserved for one in pools),
            )
        )


def _streams(trace: Trace, events: Sequence[int]) -> List[int]:
    return [trace.sites[value].stream for value in events if value >= 0]


DEFAULT_CUBLAS = 32 << 20
DEFAULT_SMS = 132
MORE_STEPS, CALM_STEPS = 10, 2
"""Steps played after a trace's own at most, and without growth until no more are."""
MORE_EVENTS = 500_000
"""Their events at most: a step of GPT-2 XL has less than ten thousand."""


class Timeline(NamedTuple):
    """What the allocator held at most, and what lived then."""

    stats: AllocatorStats
    live_at_peak: Tuple[Tuple[Site, int], ...]
    """The blocks alive at the peak of allocated bytes, with their bytes, in the order of their allocation."""
    phase: Phase
    """Where that peak is."""
    sizes: Tuple[int, ...] = ()
    """Bytes of each of the trace's sites."""
    autotuned: int = 0
    """Peak of reserved bytes while cuDNN times algorithms; 0 where it does not."""
    unseen_autotuning: int = 0
    """Bytes allocated at most if cuDNN timed what it was never seen to time; 0 without such calls."""

    @property
    def at_peak(self) -> Mapping[str, int]:
        """Bytes by category at the peak."""
        found: Dict[str, int] = {}
        for site, size in self.live_at_peak:
            found[site.category] = found.get(site.category, 0) + size
        return found


def replay(
    trace: Trace,
    batch: Optional[int] = None,
    gpu: Optional[Gpu] = None,
    settings: AllocatorSettings = DEFAULTS,
) -> Timeline:
    """The trace at a batch size (default: its own) on a GPU, and a few steps more for what is reserved."""
    sizes = site_sizes(trace, batch, gpu)
    events = _events(trace.events, sizes)
    allocator = CachingAllocator(settings)
    if any(site.stream for site in trace.sites):
        allocator = StreamPools(settings, trace, _further_step(trace) or ())
    for begin, end in zip((0, *trace.emptied), (*trace.emptied, len(events))):
        if begin:
            allocator.give_back()
        allocator.replay(events[begin:end])
    stats = allocator.stats()
    autotuned, unseen = _autotuning(trace, batch, sizes, gpu, settings)
    return Timeline(
        stats=stats._replace(peak_reserved=_reserved_later(allocator, trace, sizes)),
        live_at_peak=_alive(trace, events, stats.peak_event),
        phase=trace.phase_of(max(stats.peak_event, 0)),
        sizes=sizes,
        autotuned=autotuned,
        unseen_autotuning=unseen,
    )


def _autotuning(
    trace: Trace, batch: Optional[int], sizes: Sequence[int], gpu: Optional[Gpu], settings: AllocatorSettings
) -> Tuple[int, int]:
    """Bytes reserved at most while cuDNN times algorithms, and if it timed what it was never seen to time."""
    if not trace.benchmark:
        return 0, 0
    at = trace.job.batch if batch is None else batch
    allocator = CachingAllocator(settings)
    unseen = play_autotuning(trace, at, _events(trace.events, sizes), gpu, allocator)
    return _reserved_later(allocator, trace, sizes), unseen


_further_step = lru_cache(maxsize=2)(further_step)
"""An estimate plays the same trace several times."""


def _reserved_later(allocator: CachingAllocator, trace: Trace, sizes: Sequence[int]) -> int:
    """Reserved bytes after more steps, until they no longer grow."""
    reserved = allocator.stats().peak_reserved
    further = _further_step(trace)
    if further is None:
        return reserved
    block, calm = _count(trace.events), 0
    step, made = _events(further, sizes), _count(further)
    empties = trace.emptied[-1:] > (len(trace.events) - len(further),)
    for _ in range(min(MORE_STEPS, MORE_EVENTS // max(len(further), 1))):
        if empties:  # somewhere in the step: here it holds least
            allocator.give_back()
        allocator.replay([(block + key, size) for key, size in step])
        block += made
        calm = calm + 1 if allocator.stats().peak_reserved == reserved else 0
        reserved = allocator.stats().peak_reserved
        if calm == CALM_STEPS:
            break
    return reserved


def _count(values: Sequence[int]) -> int:
    """The allocations among a trace's events."""
    return len([value for value in values if value >= 0])


def allocator_events(trace: Trace, batch: Optional[int], gpu: Optional[Gpu]) -> Sequence[Event]:
    """The trace's events as the allocator takes them: one for each, sizes in bytes."""
    return _events(trace.events, site_sizes(trace, batch, gpu))


def site_sizes(trace: Trace, batch: Optional[int], gpu: Optional[Gpu]) -> Tuple[int, ...]:
    """Bytes of each site at a batch size, on a GPU."""
    at = trace.job.batch if batch is None else batch
    cublas = DEFAULT_CUBLAS if gpu is None else gpu.cublas_workspace_bytes
    sms = DEFAULT_SMS if gpu is None or gpu.sms is None else gpu.sms
    sizes = tuple(_size(site, at, cublas, sms) for site in trace.sites)
    if gpu is None or not gpu.workspace_scale:
        return sizes
    scale = dict(zip(("fp32", "fp16", "bf16"), gpu.workspace_scale))
    return tuple(
        size if site.convolution is None else round(size * scale.get(site.convolution.dtype, 1.0))
        for site, size in zip(trace.sites, sizes)
    )


def _events(values: Sequence[int], sizes: Sequence[int]) -> List[Tuple[int, int]]:
    """A trace's events as the allocator takes them, blocks numbered from 0 on."""
    events: List[Tuple[int, int]] = []
    block = 0
    for value in values:
        if value >= 0:
            events.append((block, sizes[value]))
            block += 1
        else:
            events.append((block + value, FREE))
    return events


def _size(site: Site, batch: int, cublas: int, sms: int) -> int:
    if site.reduction is not None:
        return reduction_bytes(site.reduction, batch, sms)
    if site.convolution is not None:
        return workspace_bytes(site.convolution, batch)
    return cublas if site.is_cublas else site.bytes_at(batch)


def _alive(trace: Trace, events: Sequence[Event], last: int) -> Tuple[Tuple[Site, int], ...]:
    live: Dict[object, Tuple[Site, int]] = {}
    for value, (key, size) in zip(trace.events[: last + 1], events):
        if size == FREE:
            live.pop(key, None)
        else:
            live[key] = (trace.sites[value], size)
    return tuple(live.values())


# -- Autotuning: what PyTorch reserves at most while cuDNN times algorithms (`torch.backends.cudnn.benchmark`)
#
# A convolution is tried when it is met for the first time, beside what lives then, and after each try PyTorch
# gives all cached memory back: allocation events that were recorded on an H200 show both, and the peaks of
# measured runs follow from it (`python -m lab.score.tries`). That each thread keeps its own choices, so that
# what a checkpoint computes again in the backward pass is tried again there, is not measured.

_Tried = Tuple[bool, int, Convolution]


def play_autotuning(
    trace: Trace, batch: int, events: Sequence[Event], gpu: Optional[Gpu], allocator: CachingAllocator
) -> int:
    """Play a trace's events, as `events` has them, into a fresh allocator, with all that cuDNN times.

    The result is what would be allocated at most if cuDNN tried what it was not seen to try; 0 without any.
    """
    room = None if gpu is None else (gpu.memory_mib - gpu.context_mib) * MIB
    begin = unknown = 0
    for at, convolution in _first_calls(trace, batch):
        allocator.replay(events[begin:at])
        begin = at
        live = allocator.stats().allocated
        # PyTorch leaves out what does not fit beside the job.
        tried = max(tried_bytes(convolution, batch), events[at][1])
        if room is None or live + tried <= room:
            allocator.replay([("tried", tried), ("tried", FREE)])
        allocator.give_back()
        skipped = skipped_bytes(convolution, batch)
        if skipped and (room is None or live + skipped <= room):
            unknown = max(unknown, live + skipped)
    allocator.replay(events[begin:])
    return unknown


def _first_calls(trace: Trace, batch: int) -> Iterator[Tuple[int, Convolution]]:
    """Events at which a convolution of a new shape begins, and that convolution."""
    seen: Set[_Tried] = set()
    keys: Dict[int, Tuple[int, Convolution]] = {}
    backward = _backward(trace)
    for at, site in enumerate(trace.events):
        convolution = trace.sites[site].convolution if site >= 0 else None
        if convolution is None:
            continue
        if site not in keys:
            keys[site] = (evaluate(convolution.batch, batch), convolution._replace(batch=()))
        key = (backward[at], *keys[site])
        if key not in seen:
            seen.add(key)
            yield at, convolution


def _backward(trace: Trace) -> List[bool]:
    """Of each event, whether it is part of a backward pass, which has a thread of its own."""
    marks = [False] * len(trace.events)
    ends = [phase.event for phase in trace.phases[1:]] + [len(marks)]
    for phase, end in zip(trace.phases, ends):
        if phase.name == "backward":
            marks[phase.event : end] = [True] * (end - phase.event)
    return marks
