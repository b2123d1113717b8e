"""Put the parts together: from a summary and a job to an `Estimate`."""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, List, Tuple

from slurm_gpumem.estimators.allocator.allocator_settings import allocator_settings
from slurm_gpumem.estimators.job.versions import FOREACH, GRADIENTS_FREED, follows
from slurm_gpumem.estimators.structural.blocks import expand_hidden
from slurm_gpumem.estimators.structural.layers import loss
from slurm_gpumem.estimators.structural.modules import run_all
from slurm_gpumem.estimators.structural.replay import Replay, StepPlan, replay
from slurm_gpumem.estimators.structural.shapes import with_shapes
from slurm_gpumem.estimators.structural.stream import ACTIVATIONS, GRADIENTS, OPTIMIZER, WEIGHTS, WORKSPACE
from slurm_gpumem.estimators.structural.tree import build_tree
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.types import Estimate, Gpu, TrainingJob
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.units import MIB

_MARGIN_SHOWN = 0.18
"""Every layer is in the summary: torchinfo with depth=20, torchsummary.

The margins are at least the 90th percentiles of (real - peak) / peak, rounded up, over runs measured on an
H200 of the models whose name has sha1(name) % 3 != 0: that share of those runs stayed within its request."""
_MARGIN_HIDDEN = 0.25
"""Blocks stand without their inner layers, or the table is cut off."""
_MARGIN_SHAPELESS = 1.2
"""No shapes at all: print(model)."""
_CATEGORIES = (
    ("weights", WEIGHTS),
    ("gradients", GRADIENTS),
    ("optimizer", OPTIMIZER),
    ("activations", ACTIVATIONS),
    ("workspace", WORKSPACE),
)


def estimate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Estimate:
    """The process's GPU memory when the summarized model is trained as `job` says."""
    return estimate_with(summary, job, gpu)[0]


def estimate_with(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Tuple[Estimate, Walk, Replay]:
    """The estimate and what it was made from, for the learned correction."""
    walk, result = simulate(summary, job, gpu)
    context = gpu.context_for(conv=walk.uses_conv, matmul=walk.uses_matmul)
    parts = _parts(result, context)
    peak = sum(parts.values())
    floor = peak - parts["fragmentation"]
    found = Estimate(
        peak_mib=peak,
        request_mib=round(peak * (1 + _margin(summary, walk))),
        floor_mib=floor,
        parts=parts,
        estimator="structural",
        gpu=gpu.name,
        job=job,
        warnings=summary.warnings,
        assumptions=_assumptions(walk, result),
    )
    return found, walk, result


@lru_cache(maxsize=32)
def rebuild(summary: ModelSummary, job: TrainingJob) -> Walk:
    """The training step that a summary's rows stand for, as a tape of operations.

    Memory, utilization and the batch sizes of a curve ask for the same few steps, each rebuilt once.
    """
    assumed = ""
    if not summary.has_shapes:
        summary, assumed = with_shapes(summary)
    summary = _without_losses(summary)
    walk = Walk(summary, job)
    if assumed:
        walk.assume(f"the summary has no shapes; assumed input: {assumed}")
    tree = build_tree(summary)
    walk.has_guesses = expand_hidden(summary, tree)
    if walk.has_guesses:
        walk.assume("blocks shown without their layers are made of the usual ones for their class and size")
    loss.start(walk, tree)
    run_all(walk, tree)
    loss.finish(walk)
    walk.param_rest()
    walk.tape.close()
    return walk


def _without_losses(summary: ModelSummary) -> ModelSummary:
    """A model that computes its own loss returns it first; the step goes on from the tensors after it."""
    if not any(len(layer.outputs) > 1 and () in layer.outputs for layer in summary.layers):
        return summary
    rows = summary.layers
    layers = tuple(row._replace(outputs=tuple(filter(None, row.outputs)) or row.outputs) for row in rows)
    return summary._replace(layers=layers)


def simulate(summary: ModelSummary, job: TrainingJob, gpu: Gpu) -> Tuple[Walk, Replay]:
    """Rebuild the training step and replay it; for estimates, tests and the documentation's example."""
    walk = rebuild(summary, job)
    rule = job.optimizer_rule
    plan = StepPlan(
        states=rule.states,
        temporaries=rule.temporaries,
        cublas_workspace=gpu.cublas_workspace_bytes if walk.uses_matmul else 0,
        accumulation=job.grad_accumulation,
        data_parallel=job.gpus > 1,
        allocator=allocator_settings(job.alloc_conf),
        keeps_gradients=not follows(GRADIENTS_FREED, job.torch),
        foreach=follows(FOREACH, job.torch) or not rule.by_pytorch,
    )
    return walk, replay(walk.tape, plan)


def _margin(summary: ModelSummary, walk: Walk) -> float:
    """What to ask for beyond the peak, as a share of it; it grows with what had to be inferred."""
    if not summary.has_shapes:
        return _MARGIN_SHAPELESS
    return _MARGIN_HIDDEN if walk.has_guesses or not summary.complete else _MARGIN_SHOWN


def _parts(result: Replay, context: int) -> Dict[str, int]:
    stats = result.stats
    parts = {name: round(result.at_peak[category] / MIB) for name, category in _CATEGORIES}
    parts["fragmentation"] = max(0, round(stats.peak_reserved / MIB) - sum(parts.values()))
    parts["context"] = context
    return parts


def _assumptions(walk: Walk, result: Replay) -> Tuple[str, ...]:
    when = {
        "forward": "in the forward pass",
        "backward": "in the backward pass",
        "optimizer": "in the optimizer's step",
    }
    found: List[str] = list(walk.assumptions)
    if result.phase in when:
        found.append(f"the peak falls {when[result.phase]}; the parts are what is alive then")
    return tuple(found)
