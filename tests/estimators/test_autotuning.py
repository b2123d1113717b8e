"""Autotuning by cudnn.benchmark: once for each shape and thread, beside what lives then."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Sequence, Tuple

import pytest

from slurm_gpumem.estimators.allocator.allocator import FREE, CachingAllocator
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.traced.estimator import estimate, estimate_trace
from slurm_gpumem.estimators.traced.replay import replay
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.estimators.workspaces.benchmark import tried_bytes
from slurm_gpumem.summaries.trace_types import Convolution, Phase, Site, Trace, TracedJob
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import MIB

CONVOLUTION = Convolution(
    call="forward", dtype="fp32", batch=(8,), channels=256, outputs=256, size=(64, 64), out_size=(64, 64),
    kernel=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1),
)  # fmt: skip
TRIED = tried_bytes(CONVOLUTION, 1)
GIB = 1 << 30


def _site(size: int = 0, convolution: Any = None) -> Site:
    if convolution is None:
        return Site((size,), "aten::relu", "", "activations")
    return Site((), "aten::convolution", "", "workspace", convolution)


def _trace(sites: Sequence[Site], events: Sequence[int], phases: Sequence[Tuple[int, str]] = ()) -> Trace:
    parts = tuple(Phase(event, name, 1) for event, name in phases) or (Phase(0, "forward", 1),)
    return Trace(
        sites=tuple(sites), events=tuple(events), phases=parts, job=TracedJob(batch=1), way="meta",
        uses_conv=True, benchmark=True,
    )  # fmt: skip


def _tried(trace: Trace) -> int:
    return replay(trace, 1, find_gpu("h200")).autotuned


def test_a_shape_is_tried_once_beside_what_lives_at_its_first_call() -> None:
    sites = [_site(GIB), _site(0, CONVOLUTION)]
    early = _trace(sites, [1, -1, 0, 0, 0, 1, -1])  # at first beside nothing, later beside 3 GiB
    late = _trace(sites, [0, 0, 0, 1, -1, 1, -1])
    assert TRIED > 8 * GIB
    assert TRIED <= _tried(early) < TRIED + GIB // 2
    assert TRIED + 3 * GIB <= _tried(late) < TRIED + 3.5 * GIB


def test_the_backward_pass_has_a_thread_of_its_own_and_tries_again() -> None:
    sites, events = [_site(GIB), _site(0, CONVOLUTION)], [1, -1, 0, 0, 0, 1, -1]
    again = _trace(sites, events, [(0, "forward"), (5, "backward")])
    assert _tried(again) >= TRIED + 3 * GIB


def test_what_is_cached_at_a_try_goes_back_before_the_next() -> None:
    other = CONVOLUTION._replace(channels=255)
    sites = [_site(4 * GIB), _site(0, CONVOLUTION), _site(0, other)]
    freed = _trace(sites, [2, -1, 0, -1, 1, -1])
    # 4 GiB were cached at the second try, and the 8 GiB of the first were given back by then.
    assert TRIED + 4 * GIB <= _tried(freed) < TRIED + 5 * GIB


def test_tries_that_were_never_seen_draw_a_warning_that_says_what_to_do() -> None:
    wide = CONVOLUTION._replace(channels=1024, size=(65, 65), out_size=(65, 65), batch=(1,))
    warned = _warnings(_trace([_site(GIB), _site(0, wide)], [0, 1, -1]))
    assert len(warned) == 1
    assert "34 GiB" in warned[0]
    assert "torch.backends.cudnn.benchmark = False" in warned[0]
    assert "gpusbatch without --trace" in warned[0]
    assert _warnings(_trace([_site(GIB), _site(0, CONVOLUTION)], [0, 1, -1])) == []


def _warnings(trace: Trace) -> List[str]:
    return list(estimate_trace(trace, TrainingJob(batch_size=1), find_gpu("h200")).warnings)


SHARED = '[node]\nmps = "shared"\n'


@pytest.mark.parametrize(
    ("site", "limited"),
    [
        (SHARED, True),
        ('[node]\nmps = "per-user"\n', True),
        (SHARED + 'mps_by_partition = {course = "per-user"}\n', True),
        # Where nobody says how jobs share GPUs, or some of them have no limit, tries may take what is free.
        ("", False),
        ("[node]\nheadroom_mib = 0\n", False),
        ('[node]\nmps = "timeslice"\n', False),
        (SHARED + 'mps_by_partition = {course = "timeslice"}\n', False),
    ],
)
def test_a_job_that_its_node_limits_asks_for_no_tries(
    site: str, limited: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpumem.toml").write_text(site)
    monkeypatch.setenv("GPUMEM_SITE_CONFIG", str(tmp_path / "gpumem.toml"))
    trace = _trace([_site(GIB), _site(0, CONVOLUTION)], [0, 1, -1])
    gpu, job = find_gpu("h200"), TrainingJob(batch_size=1)
    found = estimate(ModelSummary("gpumem", (), trace=trace), job, gpu)
    plain = estimate_trace(trace._replace(benchmark=False), job, gpu)
    tried = estimate_trace(trace, job, gpu)
    assert tried.request_mib > plain.request_mib + TRIED // MIB
    assert found.request_mib == (plain if limited else tried).request_mib
    assert any("has room" in line for line in found.warnings) == (not limited)
    assert any("only tries" in line for line in found.assumptions) == limited


def test_an_allocator_gives_back_the_segments_in_which_nothing_lives() -> None:
    allocator = CachingAllocator()
    allocator.replay([("a", 30 * MIB), ("b", 40 * MIB), ("c", 2 * MIB), ("d", 2 * MIB), ("small", 512)])
    allocator.replay([("a", FREE), ("c", FREE)])
    allocator.give_back()
    assert allocator.stats().reserved == 40 * MIB + 20 * MIB + 2 * MIB
    assert allocator.stats().peak_reserved == 92 * MIB
    allocator.replay(
        [("again", 30 * MIB), ("c", 2 * MIB)]
    )  # the one needs a segment, the other has its place
    assert allocator.stats().reserved == 92 * MIB
    allocator.replay([(name, FREE) for name in ("again", "b", "c", "d", "small")])
    allocator.give_back()
    assert allocator.stats().reserved == 0
