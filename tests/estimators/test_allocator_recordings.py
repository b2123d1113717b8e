"""The simulator against a real GPU: event streams recorded there (lab/data/allocator), replayed here.

Each line of a file is one recording: `events` are [kind, block, bytes, ...] with "a" for allocated, "f" for
freed and "s" for a segment taken from the driver (the allocator's answer, not its input), `peaks` what
`torch.cuda.memory_stats` said at the end. A first line may tell `about` the machine.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import Any, Dict, List

import pytest

from lab.places import DATA
from slurm_gpumem.estimators.allocator.allocator import FREE, CachingAllocator, Event, simulate

# Among equally large free blocks the one with the lowest address is taken, and only the driver knows the
# addresses of segments; that it hands them out from above is what the recordings show, with exceptions.
ALLOCATED_TOLERANCE = 0.005
RESERVED_WORST = 0.03
SHARE_EXACT = 0.9
SHARE_OF_SEGMENTS = 0.9


@dataclass(frozen=True)
class Stream:
    """A recording as the simulator takes it."""

    key: str
    events: List[Event]
    segments: Dict[int, int]
    """Index of an event → bytes that the GPU's allocator took from the driver for it."""
    peaks: Dict[str, int]


def _stream(recording: Dict[str, Any]) -> Stream:
    events: List[Event] = []
    segments: Dict[int, int] = {}
    for kind, number, size, *_ in recording["events"]:
        if kind == "s":
            segments[len(events)] = segments.get(len(events), 0) + size
        elif kind in "af":
            events.append((number, size if kind == "a" else FREE))
    return Stream(recording["key"], events, segments, recording["peaks"])


@pytest.fixture(scope="module")
def streams() -> List[Stream]:
    found = []
    for path in sorted((DATA / "allocator").glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            for line in file:
                recording = json.loads(line)
                # After a failed allocation the allocator gives segments back: other rules.
                if "events" in recording and not recording.get("retries"):
                    found.append(_stream(recording))
    assert len(found) >= 30
    return found


def test_segments_are_taken_when_and_as_large_as_on_the_gpu(streams: List[Stream]) -> None:
    right = wrong = 0
    for stream in streams[::4]:
        allocator, reserved = CachingAllocator(), 0
        for index, event in enumerate(stream.events):
            allocator.replay([event])
            taken = allocator.stats().reserved - reserved
            reserved += taken
            on_gpu = stream.segments.get(index, 0)
            right += taken == on_gpu > 0
            wrong += taken != on_gpu
    assert right > 1500
    assert right >= SHARE_OF_SEGMENTS * (right + wrong), f"{wrong} of {right + wrong} segments differ"


def test_whole_streams_give_the_peaks_that_the_gpu_had(streams: List[Stream]) -> None:
    off: List[str] = []
    exact = 0
    for stream in streams:
        stats = simulate(stream.events)
        allocated = abs(stats.peak_allocated / stream.peaks["allocated_bytes"] - 1)
        reserved = abs(stats.peak_reserved / stream.peaks["reserved_bytes"] - 1)
        exact += reserved == 0
        if allocated > ALLOCATED_TOLERANCE or reserved > RESERVED_WORST:
            off.append(
                f"{stream.key}: {stats.peak_allocated:,} bytes allocated against "
                f"{stream.peaks['allocated_bytes']:,}, {stats.peak_reserved:,} reserved against "
                f"{stream.peaks['reserved_bytes']:,}"
            )
    assert not off, "\n".join(off)
    assert exact >= SHARE_EXACT * len(streams), f"{exact} of {len(streams)} exact"
