"""PYTORCH_CUDA_ALLOC_CONF and CUBLAS_WORKSPACE_CONFIG in the simulation."""

from __future__ import annotations

import random
from pathlib import Path
from typing import List

import pytest

from slurm_gpumem.estimators.allocator.allocator import FREE, Event, simulate
from slurm_gpumem.estimators.allocator.allocator_settings import (
    DEFAULTS,
    allocator_settings,
    cublas_workspace_of,
    rounded_up,
)
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.registry import run
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.estimators.versions import not_simulated
from slurm_gpumem.report.estimate import assumptions
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.units import MIB

EXPANDABLE = allocator_settings("expandable_segments:True")
GPT2 = Path(__file__).resolve().parents[2] / "docs" / "examples" / "gpt2.txt"
JOB = TrainingJob(batch_size=8)


def test_an_expandable_segment_grows_from_its_free_end() -> None:
    events: List[Event] = [("a", 30 * MIB), ("b", 30 * MIB), ("b", FREE), ("c", 50 * MIB)]
    # By default the 30 MiB that b leaves are too small for c; a segment that grows uses them.
    assert simulate(events).peak_reserved == 110 * MIB
    assert simulate(events, EXPANDABLE).peak_reserved == 80 * MIB


def test_expandable_segments_hold_all_blocks_and_lose_none() -> None:
    draw = random.Random(7)
    events: List[Event] = []
    live: List[int] = []
    for key in range(3000):
        if live and draw.random() < 0.45:
            events.append((live.pop(draw.randrange(len(live))), FREE))
        else:
            live.append(key)
            events.append((key, draw.choice((4096, MIB // 2, 3 * MIB, 15 * MIB, 70 * MIB))))
    stats = simulate(events, EXPANDABLE)
    assert stats.peak_allocated <= stats.peak_reserved
    # Everything freed again: what was allocated is nothing.
    assert simulate([*events, *((key, FREE) for key in live)], EXPANDABLE).allocated == 0


def test_blocks_that_are_not_split_go_to_requests_of_their_size() -> None:
    settings = allocator_settings("max_split_size_mb:64")
    events: List[Event] = [("a", 100 * MIB), ("a", FREE), ("b", 12 * MIB), ("c", 90 * MIB)]
    assert simulate(events).peak_reserved == 190 * MIB
    # b gets a segment of its own, and c the block of a.
    assert simulate(events, settings).peak_reserved == 112 * MIB


@pytest.mark.parametrize(
    ("text", "size", "taken"),
    [
        ("roundup_power2_divisions:4", 1200 * 1024, 1280 * 1024),
        ("roundup_power2_divisions:4", 2 * MIB, 2 * MIB),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 3 * MIB, 3 * MIB),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 700 * MIB, 768 * MIB),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 2100 * MIB, 2304 * MIB),
    ],
)
def test_sizes_are_rounded_up_to_parts_of_powers_of_two(text: str, size: int, taken: int) -> None:
    assert rounded_up(size, allocator_settings(text).roundup) == taken


def test_what_is_not_simulated_is_said() -> None:
    settings = allocator_settings("garbage_collection_threshold:0.8,backend:cudaMallocAsync,roundup:x")
    assert settings._replace(notes=()) == DEFAULTS
    assert [note.split(" is ")[0] for note in settings.notes] == [
        "the allocator's setting garbage_collection_threshold:0.8",
        "the allocator's setting backend:cudaMallocAsync",
        "the allocator's setting roundup:x",
    ]
    assert "can only lower" in settings.notes[0]
    job = JOB._replace(alloc_conf="backend:cudaMallocAsync", cublas_workspace="4096")
    warnings = " ".join(run("auto", read_summary(GPT2), job, find_gpu("h200")).warnings)
    assert "backend:cudaMallocAsync is not simulated" in warnings
    assert "CUBLAS_WORKSPACE_CONFIG=4096 is not like :4096:8" in warnings
    old = JOB._replace(torch="1.13", alloc_conf="expandable_segments:True")
    assert "no expandable_segments" in " ".join(
        run("auto", read_summary(GPT2), old, find_gpu("h200")).warnings
    )


def test_eager_loading_on_a_gpu_that_the_site_calibrated_is_said() -> None:
    here = find_gpu("h200")._replace(calibrated=True)
    eager = JOB._replace(module_loading="eager")
    assert any("modules are loaded eagerly" in line for line in not_simulated(eager, here))
    assert not_simulated(JOB, here) == ()
    assert not_simulated(eager, find_gpu("a100")) == ()


def test_an_estimate_follows_the_jobs_allocator_and_workspaces() -> None:
    summary, gpu = read_summary(GPT2), find_gpu("h200")
    plain = run("auto", summary, JOB, gpu)
    assert run("auto", summary, JOB._replace(alloc_conf="expandable_segments:True"), gpu) != plain
    less = run("auto", summary, JOB._replace(cublas_workspace=":16:8"), gpu)
    assert less.parts["workspace"] < plain.parts["workspace"]
    job = JOB._replace(alloc_conf="expandable_segments:True", cublas_workspace=":16:8")
    assert "PyTorch's allocator with expandable segments" in " ".join(assumptions(summary, job, gpu))
    assert "CUBLAS_WORKSPACE_CONFIG=:16:8" in assumptions(summary, job, gpu)


@pytest.mark.parametrize(
    ("text", "size"), [(":4096:8", 32 * MIB), (":4096:2:16:8", 8_519_680), (":16:8", 131072), ("x", -1)]
)
def test_the_size_of_a_cublas_workspace(text: str, size: int) -> None:
    assert cublas_workspace_of(text) == size
