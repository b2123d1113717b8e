"""What the learned correction of a traced estimate looks at: shares, flags and logarithms of sizes."""

from __future__ import annotations

from math import log
from typing import List, Optional

from slurm_gpumem.estimators.allocator_settings import DEFAULTS, AllocatorSettings
from slurm_gpumem.estimators.traced.replay import Timeline, reserved_with, workspaces
from slurm_gpumem.estimators.types import Gpu
from slurm_gpumem.summaries.trace_types import Trace
from slurm_gpumem.units import MIB

NAMES = (
    "log_total",
    "log_reserved_ratio",
    "share_weights",
    "share_optimizer",
    "share_activations",
    "largest_workspace",
    "peak_in_forward",
    "peak_in_optimizer",
    "convolutions",
    "amp",
    "half_weights",
    "channels_last",
    "accumulation",
    "log_events",
    "recurrent",
    "made_up",
    "largest_tensor",
    "log_most_workspace",
    "log_least_workspace",
)


def features(
    trace: Trace,
    timeline: Timeline,
    total_mib: float,
    batch: Optional[int],
    gpu: Optional[Gpu],
    settings: AllocatorSettings = DEFAULTS,
) -> List[float]:
    """The numbers by NAMES; `total_mib` is the estimate with the context of the GPU of the measurements."""
    total = total_mib * MIB
    at_peak = timeline.at_peak
    stats = timeline.stats
    sizes = workspaces(trace, timeline)
    return [
        log(total_mib),
        log((stats.peak_reserved + MIB) / (stats.peak_allocated + MIB)),
        (at_peak.get("weights", 0) + at_peak.get("buffers", 0)) / total,
        at_peak.get("optimizer", 0) / total,
        at_peak.get("activations", 0) / total,
        max(sizes, default=0) / total,
        float(timeline.phase.name == "forward"),
        float(timeline.phase.name == "optimizer"),
        log(1 + sum(site.convolution is not None for site in trace.sites)),
        float(trace.job.precision.startswith("amp-")),
        float(trace.job.precision == "bf16"),
        float(trace.job.channels_last),
        float(trace.job.grad_accumulation > 1),
        log(1 + len(trace.events)),
        float(any(site.operator == "cudnn::rnn" for site in trace.sites)),
        float(bool(trace.remarks)),
        max((size for _, size in timeline.live_at_peak), default=0) / total,
        *(
            log(1 + _change(trace, timeline, batch, gpu, answer, settings) / total)
            for answer in ("most", "least")
        ),
    ]


def _change(
    trace: Trace,
    timeline: Timeline,
    batch: Optional[int],
    gpu: Optional[Gpu],
    answer: str,
    settings: AllocatorSettings,
) -> float:
    """How far the peak moves with another answer to how much cuDNN takes, in bytes."""
    if not trace.uses_conv:
        return 0.0
    return reserved_with(trace, timeline, batch, gpu, answer, settings) - timeline.stats.peak_reserved
