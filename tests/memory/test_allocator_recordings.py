"""The simulator against real GPUs: event streams recorded there, replayed here.

Each recording holds the allocator's own events of a few training steps and what
`torch.cuda.memory_stats` said at the end: {"events": [["a", key, bytes], ["f", key], ...],
"peak_allocated", "peak_reserved"}. Events of whole segments ("sa", "sf") are the allocator's answer,
not its input.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Dict, List

import pytest

from slurm_gpumem.data import data_path
from slurm_gpumem.memory.allocator import FREE, Event, simulate

RECORDINGS = sorted(data_path("models", "allocator").glob("*.json.gz"))
# Ties between equal blocks go to the lower address, and only the driver knows the addresses.
RESERVED_TOLERANCE = 0.02


def _events(recording: Dict[str, Any]) -> List[Event]:
    events: List[Event] = []
    for kind, *rest in recording["events"]:
        if kind == "a":
            events.append((rest[0], rest[1]))
        elif kind == "f":
            events.append((rest[0], FREE))
    return events


@pytest.mark.skipif(not RECORDINGS, reason="no recordings in models/allocator")
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_a_recorded_stream_gives_the_peaks_that_the_gpu_had(path: Path) -> None:
    with gzip.open(path, "rt") as file:
        recording = json.load(file)
    stats = simulate(_events(recording))
    assert stats.peak_allocated == recording["peak_allocated"]
    assert stats.peak_reserved == pytest.approx(recording["peak_reserved"], rel=RESERVED_TOLERANCE)
