"""The convolutions of `gpumem calibrate`: what is made of their sizes; the probe runs on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Tuple

import pytest

from slurm_gpumem.estimators.environment import read_environment
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.traced.replay import site_sizes
from slurm_gpumem.estimators.workspaces.convolutions import workspace_bytes
from slurm_gpumem.site.calibration.context import Calibration, put_entry
from slurm_gpumem.site.calibration.share import shared_environment
from slurm_gpumem.site.calibration.workspace_list import DTYPES, cases, findings, is_as_expected, rows_of
from slurm_gpumem.site.calibration.workspaces import compared
from slurm_gpumem.summaries.trace_types import CALLS, Site
from tests.estimators.explain.small_trace import small_summary

ENTRY = Calibration(
    "a100",
    (
        ("compute_capability", "8.0"),
        *((f"context_{name}", 500) for name in ("bare_mib", "conv_mib", "matmul_mib", "mib")),
        ("measured", True),
    ),
    (),
    (("gpu", "a100"), ("torch", "2.6"), ("cuda", "12.4"), ("driver", "550"), ("loading", "")),
)


def sizes(scale: Dict[str, float]) -> List[Tuple[int, List[int]]]:
    """What the probe would report on a GPU whose workspaces are multiples of the table's."""
    return [
        (
            number,
            [
                round(workspace_bytes(case.convolution(call), case.batch) * scale[case.dtype])
                for call in CALLS
            ],
        )
        for number, case in enumerate(cases())
    ]


def probe(scale: Dict[str, float]) -> Dict[str, Any]:
    return {"cases": sizes(scale), "seconds": 4.5, "benchmark": False, "attention": {"float16": 0.0}}


SAME = dict.fromkeys(DTYPES, 1.0)


def test_a_gpu_like_the_measured_one_shows_no_difference(tmp_path: Path) -> None:
    found = findings(rows_of(sizes(SAME)))
    assert is_as_expected(found)
    entry = compared(ENTRY, probe(SAME))
    assert "no difference" in entry.notes[0]
    put_entry(tmp_path / "gpus.toml", entry)
    gpu = find_gpu("a100", tmp_path / "gpus.toml")
    assert gpu.workspaces_measured
    assert gpu.workspace_scale == ()


def test_a_gpu_whose_workspaces_are_larger_gets_their_scale_and_traces_follow_it(tmp_path: Path) -> None:
    entry = compared(ENTRY, probe(dict.fromkeys(DTYPES, 1.5)))
    assert "in sum fp32 1.50, fp16 1.50" in entry.notes[0]
    path = tmp_path / "gpus.toml"
    put_entry(path, entry)
    gpu = find_gpu("a100", path)
    assert gpu.workspace_scale == (1.5, 1.5, 1.5)
    trace = small_summary().trace
    assert trace is not None
    large = max(cases(), key=lambda case: workspace_bytes(case.convolution("weight"), case.batch))
    site = Site((), "conv", "", "workspace", convolution=large.convolution("weight"))
    trace = replace(trace, sites=(site, *trace.sites[1:]))
    plain, scaled = site_sizes(trace, None, None), site_sizes(trace, None, gpu)
    factor = gpu.workspace_scale[DTYPES.index(large.dtype)]
    assert (scaled[0], scaled[1:]) == (round(plain[0] * factor), plain[1:])
    assert plain[0] > 0


def test_too_few_calls_store_nothing() -> None:
    few = {**probe(SAME), "cases": sizes(SAME)[:5]}
    entry = compared(ENTRY, few)
    assert entry.fields == ENTRY.fields
    assert "too few to tell" in entry.notes[0]


def test_calls_that_the_gpu_refused_are_left_out() -> None:
    measured = [(number, [-1, -1, -1] if number % 2 else list(found)) for number, found in sizes(SAME)]
    assert len(rows_of(measured)) == 3 * len([1 for number, _ in measured if not number % 2])


def test_a_shared_file_is_one_that_the_table_takes_and_names_nobody(tmp_path: Path) -> None:
    path = tmp_path / "environment.toml"
    path.write_text(shared_environment(ENTRY))
    read = read_environment(path)
    assert (read.gpu, read.torch, read.loading, read.contexts) == ("a100", "2.6", "lazy", (500,) * 4)


def test_the_probe_runs_every_call_of_a_case() -> None:
    torch = pytest.importorskip("torch")
    from slurm_gpumem.site.calibration.workspace_probe import measure

    class OnCpu:
        """PyTorch with the CPU in the GPU's place."""

        cuda = SimpleNamespace(
            synchronize=lambda: None,
            reset_peak_memory_stats=lambda: None,
            max_memory_allocated=lambda: 5,
            memory_allocated=lambda: 3,
            empty_cache=lambda: None,
        )

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    small = min(cases(), key=lambda case: case.batch * case.shape.size**2 * case.shape.channels)
    assert measure(OnCpu(), small, "cpu") == [2, 2, 2]
