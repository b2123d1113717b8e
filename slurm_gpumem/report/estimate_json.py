"""An estimate for programs: what `gpumem estimate --json` prints."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from slurm_gpumem.estimators.environment import measured_where
from slurm_gpumem.estimators.largest import Alternatives
from slurm_gpumem.estimators.margin import EXPLAINED, remedies, request_at
from slurm_gpumem.estimators.types import Estimate, Gpu, Utilization
from slurm_gpumem.report.estimate import assumptions, warnings_of
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import ceil_div

SCHEMA = "gpumem-estimate/1"


def estimate_json(
    summary: ModelSummary, gpu: Gpu, estimates: List[Estimate], other: Alternatives, shard_mib: int
) -> Dict[str, Any]:
    """The answer for programs; of several estimators the first is the one chosen."""
    chosen = estimates[0]
    result: Dict[str, Any] = {
        "schema": SCHEMA,
        **_figures(chosen, shard_mib),
        "gpu": chosen.gpu,
        "gpu_memory_mib": gpu.memory_mib,
        "gpu_usable_mib": gpu.usable_mib,
        "fits": chosen.peak_mib <= gpu.usable_mib,
        "surely_fits": chosen.sure_mib <= gpu.usable_mib,
        "job": chosen.job._asdict(),
        "model": {
            "name": summary.name,
            "format": summary.format,
            "layers": sum(layer.leaf for layer in summary.layers),
            "params": summary.total_params,
        },
        "coverage": chosen.margin.coverage,
        "measured": measured_where(gpu, chosen),
        **_margin_json(chosen, gpu),
        "utilization": utilization_json(chosen.utilization),
        "no_utilization": chosen.no_utilization or None,
        "warnings": list(warnings_of(summary, chosen)),
        "assumptions": list(assumptions(summary, chosen.job, gpu, chosen)),
    }
    if len(estimates) > 1:
        result["estimators"] = [_figures(estimate, shard_mib) for estimate in estimates]
    if other != Alternatives():
        result["alternatives"] = _alternatives_json(other, shard_mib)
    return result


def _figures(estimate: Estimate, shard_mib: int) -> Dict[str, Any]:
    return {
        "estimator": estimate.estimator,
        "peak_mib": estimate.peak_mib,
        "request_mib": estimate.request_mib,
        "floor_mib": estimate.floor_mib,
        "shards": ceil_div(estimate.request_mib, shard_mib),
        "parts": dict(estimate.parts),
    }


def _alternatives_json(other: Alternatives, shard_mib: int) -> Dict[str, Any]:
    result: Dict[str, Any] = {}
    named = {"half_batch": other.half_batch, "amp": other.amp, "checkpointing": other.checkpointing}
    for name, estimate in named.items():
        if estimate is not None:
            result[name] = {
                "batch_size": estimate.job.batch_size,
                "precision": estimate.job.precision,
                "peak_mib": estimate.peak_mib,
                "request_mib": estimate.request_mib,
                "shards": ceil_div(estimate.request_mib, shard_mib),
            }
    if other.fewer_shards is not None:
        result["fewer_shards"] = {"shards": other.fewer_shards, "batch_size": other.batch_for_fewer}
    return result


def _margin_json(estimate: Estimate, gpu: Gpu) -> Dict[str, Any]:
    """The margin of the request, requests at other coverages, and what would make the margin smaller."""
    margin = estimate.margin
    if not margin.requests:
        return {"group": None, "doubt_mib": None, "requests": {}, "less_doubt": []}
    return {
        "group": margin.group,
        "doubt_mib": estimate.sure_mib - estimate.peak_mib,
        "requests": {f"{coverage:g}": request_at(margin.requests, coverage) for coverage in EXPLAINED},
        "less_doubt": list(remedies(estimate, gpu)),
    }


def utilization_json(utilization: Optional[Utilization]) -> Optional[Dict[str, Any]]:
    """A prediction for --json."""
    if utilization is None:
        return None
    return {
        "sm_active": round(utilization.sm_active, 1),
        "sm_occupancy": round(utilization.sm_occupancy, 1),
        "dram_active": round(utilization.dram_active, 1),
        "step_seconds": float(f"{utilization.step_seconds:.4g}"),
        "intervals": {
            name: [float(f"{low:.4g}"), float(f"{high:.4g}")]
            for name, (low, high) in utilization.intervals.items()
        },
        "coverage": utilization.coverage,
        "known": utilization.is_known,
        "launch_bound": utilization.launch_bound,
        "source": utilization.source,
        "measured": utilization.measured,
        "warnings": list(utilization.warnings),
    }
