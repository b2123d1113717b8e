"""Allocator recordings: a block's number means one allocation, however often its address is taken."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="training needs torch")

from lab.collect.record import _compact


def test_an_address_that_is_taken_again_gets_a_number_of_its_own() -> None:
    def entry(action: str, address: int, size: int) -> dict[str, object]:
        return {"action": action, "addr": address, "size": size}

    trace = [
        entry("segment_alloc", 0, 2048),
        entry("alloc", 0, 512),
        entry("alloc", 512, 512),
        entry("free_requested", 0, 512),
        entry("free_completed", 0, 512),
        entry("alloc", 0, 256),
        entry("alloc", 1024, 512),
        entry("free_completed", 0, 256),
        entry("free_completed", 512, 512),
    ]
    events, _ = _compact(trace, [])
    assert events == [
        ["s", 0, 2048],
        ["a", 1, 512],
        ["a", 2, 512],
        ["f", 1, 512],
        ["a", 3, 256],
        ["a", 4, 512],
        ["f", 3, 256],
        ["f", 2, 512],
    ]


def test_events_name_the_operator_that_was_running() -> None:
    trace = [{"action": "alloc", "addr": i, "size": 512, "time_us": i} for i in (5, 15, 25)]
    events, names = _compact(trace, [(10, "convolution(1x3)"), (20, "relu(1x3)")])
    assert names == ["convolution(1x3)", "relu(1x3)"]
    assert events == [["a", 0, 512], ["a", 1, 512, 0], ["a", 2, 512, 1]]
