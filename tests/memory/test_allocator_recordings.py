"""The simulator against real GPUs: event streams recorded there (models/allocator), replayed here.

Each line of a file is one recording: `events` are [kind, block, bytes, ...] with "a" for allocated and "f"
for freed, `peaks` what `torch.cuda.memory_stats` said at the end. Events of whole segments ("s", "r") are
the allocator's answer, not its input. A first line may tell `about` the machine.
"""

from __future__ import annotations

import gzip
import json
from typing import Any, Dict, Iterator, List, Set

import pytest

from slurm_gpumem.data import data_path
from slurm_gpumem.memory.allocator import FREE, Event, simulate

# Ties between equal blocks go to the lower address, and only the driver knows the addresses.
RESERVED_TOLERANCE = 0.02


def _recordings() -> Iterator[Dict[str, Any]]:
    for path in sorted(data_path("models", "allocator").glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            for line in file:
                recording = json.loads(line)
                # After a failed allocation the allocator gives segments back: other rules.
                if "events" in recording and not recording.get("retries"):
                    yield recording


def _events(recording: Dict[str, Any]) -> List[Event]:
    events: List[Event] = []
    live: Set[int] = set()
    for kind, block, size, *_ in recording["events"]:
        if kind == "a":
            live.add(block)
            events.append((block, size))
        elif kind == "f" and block in live:
            live.remove(block)
            events.append((block, FREE))
    return events


def test_recorded_streams_give_the_peaks_that_the_gpu_had() -> None:
    off: List[str] = []
    count = 0
    for recording in _recordings():
        count += 1
        stats = simulate(_events(recording))
        peaks = recording["peaks"]
        reserved = abs(stats.peak_reserved / peaks["reserved_bytes"] - 1)
        if stats.peak_allocated != peaks["allocated_bytes"] or reserved > RESERVED_TOLERANCE:
            off.append(
                f"{recording['key']}: {stats.peak_allocated:,} bytes allocated against "
                f"{peaks['allocated_bytes']:,}, {stats.peak_reserved:,} reserved against "
                f"{peaks['reserved_bytes']:,}"
            )
    if not count:
        pytest.skip("no recordings in models/allocator")
    assert not off, "\n".join(off)
