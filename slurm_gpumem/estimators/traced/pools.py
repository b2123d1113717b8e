"""Memory by stream: PyTorch's allocator gives a block only to the stream that it was first allocated for."""

from __future__ import annotations

from typing import Dict, Iterable, List, Sequence

from slurm_gpumem.estimators.allocator.allocator import AllocatorStats, CachingAllocator, Event
from slurm_gpumem.estimators.allocator.allocator_settings import AllocatorSettings
from slurm_gpumem.summaries.trace_types import Trace


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
