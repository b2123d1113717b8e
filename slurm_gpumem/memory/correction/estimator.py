"""The estimator `corrected`: the structural estimate, moved and bounded by what measured runs taught."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from math import ceil, exp
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.data import data_path
from slurm_gpumem.memory.correction.features import NAMES, features
from slurm_gpumem.memory.correction.trees import Correction, load
from slurm_gpumem.memory.structural.estimator import estimate_with
from slurm_gpumem.memory.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.model.types import ModelSummary

FILE = "correction.json"
MEASURED_GPU = "h200"
REFERENCE_CONTEXT_MIB = 764
"""Context of the measured GPU. Ratios are of whole processes there, so that an error of a few MiB in a tiny
job's tensors does not look large; on another GPU the same tensors are corrected by the same MiB."""
OUTSIDE_COVERAGE = 0.95
"""What the bound holds for at best when the job is unlike the measured ones."""
_MIB = 1 << 20
_SLACK = 1e-9
_STRANGE = re.compile(
    r"Mamba|S4|SSM|StateSpace|Hyena|RWKV|Rwkv|Retention|"
    r"(?:GCN|GAT|SAGE|GIN|Graph|Cheb|Edge|Message)\w*(?:Conv|Layer|Passing)|^MessagePassing"
)
"""Layers whose work is mostly done in operations that no summary shows: state-space and graph models."""


def estimate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """The process's GPU memory: structural, corrected by the package's model, with its bound."""
    return corrected(summary, job, gpu, _packaged())


@lru_cache(maxsize=1)
def _packaged() -> Correction:
    return load(data_path("models", FILE))


def corrected(summary: ModelSummary, job: TrainingJob, gpu: Gpu, correction: Correction) -> Estimate:
    """The estimate under a given correction; `gpumem accuracy` gives one that never saw the model."""
    plain, walk, result = estimate_with(summary, job, gpu)
    context = plain.parts["context"]
    total = result.stats.peak_reserved / _MIB + REFERENCE_CONTEXT_MIB
    values = features(summary, walk, result, total)
    center = correction.center.predict(values)
    spread = exp(correction.spread.predict(values))
    bound = correction.bounds[group_of(values)]
    strange = outside(values, summary, correction.ranges)
    steps = bound.outside if strange else bound.quantile
    moved = context - REFERENCE_CONTEXT_MIB
    parts, peak = _move(plain.parts, round(total * exp(center)) + moved)
    request = max(peak, ceil(total * exp(center + steps * spread)) + moved)
    warnings: Tuple[str, ...] = plain.warnings
    if strange:
        warnings = (*warnings, f"unlike the measured models ({strange}); the request is wider than usual")
    said = [*plain.assumptions, f"corrected by {center * 100:+.0f} % as measured runs on an H200 suggest"]
    if gpu.entry != MEASURED_GPU:
        said.append(f"the correction is unmeasured on {gpu.name}")
    return replace(
        plain,
        peak_mib=peak,
        request_mib=request,
        floor_mib=min(plain.floor_mib, peak),
        parts=parts,
        estimator="corrected",
        warnings=warnings,
        assumptions=tuple(said),
        coverage=min(bound.coverage, OUTSIDE_COVERAGE) if strange else bound.coverage,
    )


def _move(parts: Mapping[str, int], peak: int) -> Tuple[Dict[str, int], int]:
    """The parts summing to the corrected peak: fragmentation gives or takes first, then activations."""
    moved: Dict[str, int] = dict(parts)
    change = peak - sum(moved.values())
    for name in ("fragmentation", "activations", "workspace"):
        step = max(change, -moved[name])
        moved[name] += step
        change -= step
        if not change:
            break
    return moved, sum(moved.values())


def group_of(values: Sequence[float]) -> str:
    """How much of the model the text shows; each group has its own bound."""
    value = dict(zip(NAMES, values))
    if value["shapeless"]:
        return "shapeless"
    return "hidden" if value["guessed"] or value["incomplete"] else "shown"


def outside(
    values: Sequence[float], summary: Optional[ModelSummary], ranges: Sequence[Tuple[float, float]]
) -> str:
    """Why the job lies outside what was measured, in a few words; "" when it does not."""
    reasons: List[str] = []
    if summary is not None:
        kinds = sorted({layer.kind for layer in summary.layers if _STRANGE.search(layer.kind)})
        if kinds:
            reasons.append(f"{', '.join(kinds[:3])} layers")
    by_name = dict(zip(NAMES, values))
    if by_name["conv_3d"] > 0:
        reasons.append("3-D convolutions")
    beyond = [
        name.replace("_", " ")
        for name, value, (low, high) in zip(NAMES, values, ranges)
        if not low - _SLACK <= value <= high + _SLACK
    ]
    if beyond:
        reasons.append(f"beyond the usual: {', '.join(beyond[:3])}")
    return "; ".join(reasons)
