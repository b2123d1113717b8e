"""Memory that was allocated for one stream serves no other."""

from __future__ import annotations

import json

from slurm_gpumem.estimators.traced.replay import replay
from slurm_gpumem.summaries.parsers.own import trace_content, trace_of
from slurm_gpumem.summaries.trace_types import Phase, Site, Trace, TracedJob

_MIB = 1 << 20


def _trace(stream: int) -> Trace:
    """64 MiB come and go; then 64 MiB come and go for a stream."""
    sites = (
        Site((64 * _MIB,), "aten::mm", "", "activations"),
        Site((64 * _MIB,), "aten::relu", "", "activations", stream=stream),
    )
    return Trace(
        job=TracedJob(batch=1),
        way="meta",
        sites=sites,
        events=(0, -1, 1, -1),
        phases=(Phase(0, "forward", 1),),
    )


def test_what_one_stream_left_is_not_given_to_another() -> None:
    shared, apart = replay(_trace(0)).stats, replay(_trace(1)).stats
    assert (shared.peak_reserved, apart.peak_reserved) == (64 * _MIB, 128 * _MIB)
    assert shared.peak_allocated == apart.peak_allocated == 64 * _MIB


def test_the_stream_of_a_site_is_kept_in_a_summary() -> None:
    for stream in (0, 3):
        trace = _trace(stream)
        assert trace_of(json.loads(json.dumps(trace_content(trace)))).sites == trace.sites
        assert trace.sites[1]._replace(stream=0) == _trace(0).sites[1]
