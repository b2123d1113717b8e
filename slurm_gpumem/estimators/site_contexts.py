"""What jobs report of their CUDA context, as a constant in MiB for types of GPUs where nothing else is known.

PyTorch's message about memory that ran out names what the process held and what of it PyTorch had; the rest
is the context. Other jobs report what PyTorch reserved, where the site asks for it, and the node measured
what the process held. Either is a user's word: users weigh the same however often they say it, and nothing is
learned from fewer than three. What root calibrated goes before it.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple, Set

from slurm_gpumem.estimators.gpus import closest_gpu
from slurm_gpumem.estimators.quantiles import median
from slurm_gpumem.estimators.remembered import plain_gpu
from slurm_gpumem.estimators.site_fit import LEAST_USERS
from slurm_gpumem.estimators.site_layer import SiteLayer


class ContextReport(NamedTuple):
    """One job's word."""

    user: str
    gpu: str
    beyond_mib: int
    """The context that it reports, less the one of jobs on such a GPU that say nothing of theirs."""


class LearnedContext(NamedTuple):
    """What the users of a type of GPU agree on."""

    beyond_mib: float
    users: int


def contexts_learned(reports: Iterable[ContextReport]) -> Dict[str, LearnedContext]:
    """By type of GPU: the median over at least three users of each one's own median."""
    by_kind: Dict[str, Dict[str, List[float]]] = {}
    names: Dict[str, Set[str]] = {}
    for report in reports:
        kind = plain_gpu(report.gpu)
        names.setdefault(kind, set()).add(report.gpu)
        by_kind.setdefault(kind, {}).setdefault(report.user, []).append(float(report.beyond_mib))
    return {
        kind: LearnedContext(median([median(own) for own in users.values()]), len(users))
        for kind, users in sorted(by_kind.items())
        if len(users) >= LEAST_USERS and not any(closest_gpu(name, None).calibrated for name in names[kind])
    }


def with_contexts(layer: SiteLayer, learned: Dict[str, LearnedContext]) -> SiteLayer:
    """The layer with constants for the types that whole runs did not teach it."""
    new = {kind: one.beyond_mib for kind, one in learned.items() if kind not in layer.constants}
    return layer._replace(constants={**layer.constants, **new})
