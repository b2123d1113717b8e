from __future__ import annotations

import time
from typing import Dict, List, Optional, Tuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpumem.estimators.allocator.allocator import FREE, CachingAllocator, Event, simulate
from slurm_gpumem.units import MIB

KIB = 1024


# -- Cases worked by hand ------------------------------------------------------------------------


def test_nothing_is_reserved_before_the_first_allocation() -> None:
    stats = simulate([])
    assert (stats.peak_allocated, stats.peak_reserved, stats.peak_event, stats.events) == (0, 0, -1, 0)


def test_a_single_byte_takes_512_and_reserves_a_small_segment() -> None:
    stats = simulate([("a", 1)])
    assert (stats.peak_allocated, stats.peak_reserved) == (512, 2 * MIB)


def test_an_empty_tensor_takes_nothing_and_can_be_freed() -> None:
    stats = simulate([("a", 0), ("a", FREE)])
    assert (stats.peak_allocated, stats.peak_reserved) == (0, 0)


def test_a_request_of_exactly_1_mib_is_small_and_one_byte_more_is_large() -> None:
    assert simulate([("a", MIB)]).peak_reserved == 2 * MIB
    assert simulate([("a", MIB + 1)]).peak_reserved == 20 * MIB


def test_requests_from_10_mib_on_get_their_own_segment_rounded_to_2_mib() -> None:
    assert simulate([("a", 10 * MIB - 512)]).peak_reserved == 20 * MIB
    assert simulate([("a", 10 * MIB)]).peak_reserved == 10 * MIB
    assert simulate([("a", 31 * MIB)]).peak_reserved == 32 * MIB


def test_small_segments_are_filled_to_the_last_512_bytes() -> None:
    events: List[Event] = [(i, 512) for i in range(4096)]
    assert simulate(events).peak_reserved == 2 * MIB
    assert simulate([*events, ("one more", 512)]).peak_reserved == 4 * MIB


def test_a_large_block_is_not_split_for_a_rest_of_1_mib_and_the_rest_counts_as_allocated() -> None:
    # 31 MiB in a 32 MiB segment leaves exactly 1 MiB: not more than 1 MiB, so it stays in the block.
    stats = simulate([("a", 31 * MIB)])
    assert stats.peak_allocated == 32 * MIB
    stats = simulate([("a", 31 * MIB - 512)])
    assert stats.peak_allocated == 31 * MIB - 512


def test_two_requests_of_5_mib_share_one_segment_of_20() -> None:
    events: List[Event] = [(i, 5 * MIB) for i in range(4)]
    assert simulate(events).peak_reserved == 20 * MIB


def test_the_smallest_block_that_fits_is_taken() -> None:
    events: List[Event] = [
        ("big", 40 * MIB),
        ("small", 20 * MIB),
        ("big", FREE),
        ("small", FREE),
        ("next", 18 * MIB),  # taken from the 20 MiB block, although the 40 MiB one came first
        ("then", 40 * MIB),
    ]
    assert simulate(events).peak_reserved == 60 * MIB


def test_neighbours_merge_on_both_sides_so_that_a_freed_segment_is_whole_again() -> None:
    events: List[Event] = [("a", 5 * MIB), ("b", 5 * MIB), ("c", 5 * MIB), ("d", 5 * MIB)]
    events += [("a", FREE), ("c", FREE), ("b", FREE), ("d", FREE), ("whole", 20 * MIB)]
    assert simulate(events).peak_reserved == 20 * MIB


def test_blocks_of_two_segments_never_merge() -> None:
    events: List[Event] = [("a", 20 * MIB), ("b", 20 * MIB), ("a", FREE), ("b", FREE), ("c", 40 * MIB)]
    assert simulate(events).peak_reserved == 80 * MIB


def test_the_small_pool_never_takes_from_a_large_segment() -> None:
    events: List[Event] = [("large", 15 * MIB), ("large", FREE), ("small", 512)]
    assert simulate(events).peak_reserved == 18 * MIB


def test_fragmentation_is_what_was_reserved_beyond_the_allocated_peak() -> None:
    events: List[Event] = [("a", 20 * MIB), ("a", FREE), ("b", 22 * MIB), ("b", FREE), ("c", 24 * MIB)]
    stats = simulate(events)
    assert stats.peak_reserved == 66 * MIB
    assert stats.fragmentation == 42 * MIB
    assert stats.peak_event == 4


def test_several_steps_replayed_apart_are_as_one_stream() -> None:
    step: List[Event] = [
        ("x", 3 * MIB),
        ("y", 50 * MIB),
        ("x", FREE),
        ("z", 4 * MIB),
        ("y", FREE),
        ("z", FREE),
    ]
    allocator = CachingAllocator()
    for _ in range(3):
        allocator.replay(step)
    assert allocator.stats() == simulate(step * 3)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([("a", FREE)], "event 0: 'a' is not allocated"),
        ([("a", 1), ("a", 1)], "event 1: 'a' is allocated already"),
        ([("a", -2)], "event 0: -2 is not a size"),
    ],
)
def test_an_impossible_event_is_named(events: List[Event], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate(events)


# -- Against a slow twin that keeps every block in plain lists -----------------------------------


class _Slow:
    """The same rules, written for reading: segments are lists of [size, key or None]."""

    def __init__(self) -> None:
        self.segments: List[Tuple[bool, List[List[object]]]] = []

    def malloc(self, key: str, size: int) -> None:
        if size == 0:
            return
        size = -(-size // 512) * 512
        small = size <= MIB
        fitting = [
            # The driver hands out segments from above: of equals the last one has the lowest address.
            (blocks[i][0], -number, i)
            for number, (is_small, blocks) in enumerate(self.segments)
            if is_small == small
            for i in range(len(blocks))
            if blocks[i][1] is None and self._size(blocks[i]) >= size
        ]
        if not fitting:
            segment = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            self.segments.append((small, [[segment, None]]))
            return self.malloc(key, size)
        _, number, position = min(fitting)  # type: ignore[type-var]
        blocks = self.segments[-number][1]
        rest = self._size(blocks[position]) - size
        if (small and rest >= 512) or rest > MIB:
            blocks[position : position + 1] = [[size, key], [rest, None]]
        else:
            blocks[position][1] = key

    def free(self, key: str) -> None:
        for _, blocks in self.segments:
            for block in blocks:
                if block[1] == key:
                    block[1] = None
            for i in range(len(blocks) - 1, 0, -1):
                if blocks[i][1] is None and blocks[i - 1][1] is None:
                    blocks[i - 1][0] = self._size(blocks[i - 1]) + self._size(blocks[i])
                    del blocks[i]

    @staticmethod
    def _size(block: List[object]) -> int:
        assert isinstance(block[0], int)
        return block[0]

    def allocated(self) -> int:
        return sum(self._size(b) for _, blocks in self.segments for b in blocks if b[1] is not None)

    def reserved(self) -> int:
        return sum(self._size(b) for _, blocks in self.segments for b in blocks)


_sizes = st.one_of(
    st.integers(0, 4 * KIB),
    st.integers(1, 3 * MIB),
    st.integers(MIB, 64 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 18 * MIB, 19 * MIB, 20 * MIB, 31 * MIB]),
)
# A number picks which live allocation to free; a size of None frees.
_scripts = st.lists(st.tuples(st.integers(0, 10_000), st.one_of(_sizes, st.none())), max_size=60)


@settings(max_examples=60)
@given(_scripts)
def test_any_stream_gives_the_figures_of_the_slow_twin(script: List[Tuple[int, Optional[int]]]) -> None:
    fast, slow = CachingAllocator(), _Slow()
    live: Dict[str, int] = {}
    peak = 0
    for number, (pick, size) in enumerate(script):
        if size is not None:
            key = f"t{number}"
            live[key] = size
            fast.replay([(key, size)])
            slow.malloc(key, size)
        elif live:
            key = sorted(live)[pick % len(live)]
            del live[key]
            fast.replay([(key, FREE)])
            slow.free(key)
        stats = fast.stats()
        assert (stats.allocated, stats.reserved) == (slow.allocated(), slow.reserved())
        assert sum(live.values()) <= stats.allocated <= stats.reserved
        peak = max(peak, stats.allocated)
        assert stats.peak_allocated == peak
    fast.replay([(key, FREE) for key in live])
    assert fast.stats().allocated == 0


@pytest.mark.timing
def test_a_stream_of_5000_events_takes_at_most_a_hundred_plain_loops_over_it() -> None:
    # A ratio, not milliseconds: the machine that runs this is shared.
    events: List[Event] = []
    for step in range(3):
        keys = [(step, i) for i in range(560)]
        for i, key in enumerate(keys):
            events.append((key, (i * 7919 % 40 + 1) * 300 * KIB))
            if i % 2:
                events += [("t", (i % 9 + 1) * MIB), ("t", FREE)]
        events += [(key, FREE) for key in reversed(keys)]
    best = {"replay": 1e9, "loop": 1e9}
    for _ in range(5):
        start = time.process_time()
        simulate(events)
        best["replay"] = min(best["replay"], time.process_time() - start)
        start = time.process_time()
        table = {}
        for key, size in events:
            table[key] = size
        best["loop"] = min(best["loop"], time.process_time() - start)
    assert len(events) >= 5000
    assert best["replay"] <= 100 * best["loop"]
