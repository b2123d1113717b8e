"""PyTorch's CUDA caching allocator, simulated: one stream, default settings or the job's own.

    allocator = CachingAllocator()
    allocator.replay([("w", 4096), ("x", 30 << 20), ("x", FREE)])
    allocator.stats().peak_reserved

The rules (c10/cuda/CUDACachingAllocator):

* a request is rounded up to 512 bytes; nothing is allocated for zero bytes;
* up to 1 MiB it comes from the small pool, whose segments have 2 MiB; above, from the large
  pool, whose segments have 20 MiB for requests under 10 MiB and else the request's own
  size rounded up to 2 MiB;
* the smallest free block of the pool that is large enough is taken, the lowest address among equals
  (the driver hands out segments from above);
* it is split when the rest is at least 512 bytes (small pool) or more than 1 MiB (large pool);
  a rest too small to be split off counts as allocated;
* a freed block merges with its free neighbours in the segment;
* segments are given back only by `give_back` (`torch.cuda.empty_cache`), so what is reserved only grows.

Settings that change this are off by default in PyTorch (`allocator_settings`). With `expandable_segments`
each pool has one segment, which grows in steps of 2 or 20 MiB from the free block at its end, and every rest
is split off; with `max_split_size_mb` blocks of that size are not split, and go to requests of about their
size only; with `roundup_power2_divisions` requests are rounded up further. The loop below is written out
flat: an estimate replays thousands of events and has a few milliseconds for it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Dict, Hashable, Iterable, List, NamedTuple, Tuple

from slurm_gpumem.errors import DoesNotFitError
from slurm_gpumem.estimators.allocator.allocator_settings import DEFAULTS, AllocatorSettings, rounded_up
from slurm_gpumem.units import MIB

ROUNDING = 512
SMALL_REQUEST = 1 * MIB
"""The largest request of the small pool, and the rest a large block must exceed to be split."""
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
OWN_SEGMENT = 10 * MIB
"""From here on a request gets a segment of its own size..."""
OWN_SEGMENT_ROUNDING = 2 * MIB
"""... rounded up to this."""

FREE = -1
"""Stands in place of the size in an event that frees."""

Event = Tuple[Hashable, int]
"""(key, bytes) allocates and names the allocation; (key, FREE) frees what was named so."""

# Inside, sizes and addresses count in units of 512 bytes, and a free block is one integer that
# sorts by (size, address): size << _SHIFT | address. Small integers keep the bisection fast.
_UNIT_BITS = 9
_ROUND_UP = ROUNDING - 1
_SHIFT = 36
_ADDRESS_MASK = (1 << _SHIFT) - 1
_SMALL_REQUEST = SMALL_REQUEST >> _UNIT_BITS
_OWN_SEGMENT = OWN_SEGMENT >> _UNIT_BITS
_OWN_ROUNDING = OWN_SEGMENT_ROUNDING >> _UNIT_BITS
_NOT_SPLIT_SLACK = 20 * MIB >> _UNIT_BITS
"""How much larger than a request an unsplit block may be (max_non_split_rounding_mb)."""
_LARGE_POOL = 1 << (_SHIFT - 1)
"""Where the expandable segment of the large pool begins; that of the small one begins at 0."""

_TOO_LARGE = "as its summary reads, the model would need more than 16 TiB; is the batch size right?"


class AllocatorStats(NamedTuple):
    """What `torch.cuda.memory_stats` would say, in bytes."""

    allocated: int
    reserved: int
    peak_allocated: int
    peak_reserved: int
    peak_event: int
    """Index, over all events replayed so far, of the one that first reached `peak_allocated`; -1: none."""
    events: int

    @property
    def fragmentation(self) -> int:
        """Reserved but never in use at the same time."""
        return self.peak_reserved - self.peak_allocated


class CachingAllocator:
    """The state of the allocator between events; `replay` may be called again and again."""

    def __init__(self, settings: AllocatorSettings = DEFAULTS) -> None:
        self._roundup = settings.roundup
        self._expandable = settings.expandable
        self._max_split = settings.max_split >> _UNIT_BITS
        self._ends_at = [0, _LARGE_POOL]
        """Where the expandable segments of the small and the large pool end."""
        self._live: Dict[Hashable, int] = {}
        """Each allocation's block, packed as a free one; 0 for an empty tensor."""
        self._free_small: List[int] = []
        self._free_large: List[int] = []
        # The same free blocks by where they begin and where they end: a freed block's neighbours.
        self._begins: Dict[int, int] = {}
        self._ends: Dict[int, int] = {}
        self._lowest = _ADDRESS_MASK
        """Where the last segment begins: the driver hands out addresses from above."""
        self._segments: Dict[int, int] = {}
        """Units of each segment, by where it begins."""
        self._allocated = 0
        self._reserved = self._peak_reserved = 0
        self._peak_allocated = 0
        self._peak_event = -1
        self._events = 0

    def replay(self, events: Iterable[Event]) -> None:
        """Play the events in their order. ValueError names an event that cannot be."""
        live, begins, ends = self._live, self._begins, self._ends
        free_small, free_large = self._free_small, self._free_large
        allocated, peak = self._allocated, self._peak_allocated
        roundup, expandable = self._roundup, self._expandable
        max_split = self._max_split or 1 << _SHIFT
        index = self._events - 1
        for index, (key, size) in enumerate(events, self._events):
            if size > 0:
                if key in live:
                    raise ValueError(f"event {index}: {key!r} is allocated already")
                if roundup:
                    size = rounded_up(size, roundup)
                units = (size + _ROUND_UP) >> _UNIT_BITS
                free_list = free_small if units <= _SMALL_REQUEST else free_large
                position = bisect_left(free_list, units << _SHIFT)
                if position < len(free_list) and (
                    (found := free_list[position] >> _SHIFT) < max_split
                    or (units >= max_split and found < units + _NOT_SPLIT_SLACK)
                ):
                    block = free_list.pop(position)
                    address = block & _ADDRESS_MASK
                    del begins[address]
                elif expandable:
                    address, found = self._grown(units)
                else:
                    address, found = self._new_segment(units)
                rest = found - units
                if rest and (
                    units <= _SMALL_REQUEST or expandable or (rest > _SMALL_REQUEST and found < max_split)
                ):
                    tail = rest << _SHIFT | address + units
                    begins[address + units] = ends[address + found] = tail
                    insort(free_list, tail)
                else:
                    ends.pop(address + found, None)
                    units = found
                live[key] = units << _SHIFT | address
                allocated += units
                if allocated > peak:
                    peak = allocated
                    self._peak_event = index
            elif size == FREE:
                try:
                    block = live.pop(key)
                except KeyError:
                    raise ValueError(f"event {index}: {key!r} is not allocated") from None
                if not block:
                    continue
                address = block & _ADDRESS_MASK
                units = block >> _SHIFT
                allocated -= units
                # A block of the large pool always has more than 1 MiB, one of the small pool never.
                free_list = free_small if units <= _SMALL_REQUEST else free_large
                end = address + units
                if address in ends:
                    before = ends.pop(address)
                    del free_list[bisect_left(free_list, before)]
                    address = before & _ADDRESS_MASK
                if end in begins:
                    after = begins.pop(end)
                    del free_list[bisect_left(free_list, after)]
                    end += after >> _SHIFT
                block = (end - address) << _SHIFT | address
                begins[address] = ends[end] = block
                insort(free_list, block)
            elif size == 0:
                live[key] = 0
            else:
                raise ValueError(f"event {index}: {size} is not a size; FREE is {FREE}")
        self._allocated, self._peak_allocated = allocated, peak
        self._events = index + 1

    def _new_segment(self, units: int) -> Tuple[int, int]:
        """Address and size of a fresh segment for a request."""
        if units <= _SMALL_REQUEST:
            size = SMALL_SEGMENT >> _UNIT_BITS
        elif units < _OWN_SEGMENT:
            size = LARGE_SEGMENT >> _UNIT_BITS
        else:
            size = -(-units // _OWN_ROUNDING) * _OWN_ROUNDING
        # The gap of one unit keeps the blocks of two segments from ever being neighbours.
        address = self._lowest - size - 1
        if address < 0:
            raise DoesNotFitError(_TOO_LARGE)
        self._lowest = address
        self._segments[address] = size
        self._reserved += size
        self._peak_reserved = max(self._peak_reserved, self._reserved)
        return address, size

    def give_back(self) -> None:
        """`torch.cuda.empty_cache`: segments in which nothing lives go back to the driver.

        Expandable segments are left as they are.
        """
        for free_list in (self._free_small, self._free_large):
            kept = []
            for block in free_list:
                address, units = block & _ADDRESS_MASK, block >> _SHIFT
                if self._segments.get(address) != units:
                    kept.append(block)
                    continue
                del self._segments[address], self._begins[address], self._ends[address + units]
                self._reserved -= units
            free_list[:] = kept

    def _grown(self, units: int) -> Tuple[int, int]:
        """Address and size of a block at the end of the pool's segment, which grows as far as it must."""
        pool = int(units > _SMALL_REQUEST)
        step = (LARGE_SEGMENT if pool else SMALL_SEGMENT) >> _UNIT_BITS
        end = address = self._ends_at[pool]
        if end in self._ends:
            tail = self._ends.pop(end)
            address = tail & _ADDRESS_MASK
            del self._begins[address]
            free_list = self._free_large if pool else self._free_small
            del free_list[bisect_left(free_list, tail)]
        more = -(-(units - (end - address)) // step) * step
        if end + more > (_LARGE_POOL if not pool else 2 * _LARGE_POOL) - 1:
            raise DoesNotFitError(_TOO_LARGE)
        self._ends_at[pool] = end + more
        self._reserved += more
        self._peak_reserved = max(self._peak_reserved, self._reserved)
        return address, end + more - address

    def stats(self) -> AllocatorStats:
        """The figures up to now."""
        return AllocatorStats(
            allocated=self._allocated << _UNIT_BITS,
            reserved=self._reserved << _UNIT_BITS,
            peak_allocated=self._peak_allocated << _UNIT_BITS,
            peak_reserved=self._peak_reserved << _UNIT_BITS,
            peak_event=self._peak_event,
            events=self._events,
        )


def simulate(events: Iterable[Event], settings: AllocatorSettings = DEFAULTS) -> AllocatorStats:
    """The figures of one stream, played by a fresh allocator."""
    allocator = CachingAllocator(settings)
    allocator.replay(events)
    return allocator.stats()
