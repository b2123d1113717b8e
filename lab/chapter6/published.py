"""Chapter 6 of the dissertation: which policies were tried on which trace, and the figures that it prints.

Bars of figures 6.5 to 6.12 carry no numbers; what the text says of them is here. The curves of figures 6.13
to 6.15 are vector graphics in the authors' repository: their means over time and lengths were read from it.
"""

from __future__ import annotations

from typing import List, Mapping, NamedTuple, Optional, Tuple

from lab.score.loads import CHOSEN
from lab.simulate.layouts import LAYOUTS, Layout
from lab.simulate.policies import GB, POLICIES, WINDOW_S, with_slowdown
from slurm_gpumem.simulation.types import MIG, Fleet, Policy
from slurm_gpumem.simulation.what_if_text import parse_fleet

GPUS = "4xa100-40gb"
POWER_LIMIT = 275.0
"""Watts of each GPU in a DGX Station A100, the published machine, as nvidia-smi shows there (an A100 in a
server may draw 400)."""
STREAMS, MPS = "timeslice", "mps"
"""Without MPS the published manager's tasks are processes that take turns; with it they share one server."""


class Experiment(NamedTuple):
    """One run of the published manager, and what was published of it."""

    label: str
    tasks: int
    policy: Policy
    estimator: str = "none"
    mode: str = MPS
    crashes: Optional[int] = None
    mj: Optional[float] = None
    total: str = ""
    """What the text says of the total time, as a part of that in exclusive use."""
    mig: Tuple[Layout, ...] = ()


def machine() -> Fleet:
    """The published machine."""
    return parse_fleet(GPUS)._replace(power_limit=POWER_LIMIT)


def _policy(name: str, max_active: Optional[float] = None, margin_gb: Optional[int] = None) -> Policy:
    policy = POLICIES[name]
    if max_active is not None:
        window = WINDOW_S if max_active < 1 else policy.window_s
        policy = policy._replace(max_active=max_active, window_s=window)
    return policy if margin_gb is None else policy._replace(margin_mib=margin_gb * GB)


def _magm(label: str, estimator: str, max_active: float, crashes: int, total: str = "") -> Experiment:
    return Experiment(label, 90, _policy("magm", max_active, 0), estimator, crashes=crashes, total=total)


ORACLES: Tuple[Experiment, ...] = (
    Experiment("exclusive", 90, POLICIES["exclusive"]),
    Experiment("first fit (OFF), MPS", 90, POLICIES["first-fit"], "oracle"),
    Experiment("best fit (OBF), MPS", 90, POLICIES["best-fit"], "oracle"),
    Experiment("worst fit (OWF), MPS", 90, POLICIES["worst-fit"], "oracle", total="69.9 %, least"),
    Experiment("least utilized (OLUG), MPS", 90, POLICIES["least-utilized"], "oracle"),
    Experiment("worst fit (OWF), streams", 90, POLICIES["worst-fit"], "oracle", STREAMS, total="hardly less"),
)
RECOVERY_ONLY: Tuple[Experiment, ...] = (
    Experiment("RR", 90, _policy("round-robin", 1.0, 0), crashes=8, total="among most"),
    _magm("MAGM", "none", 1.0, 5, "among most"),
    _magm("MAGM, SMACT 80 %", "none", 0.8, 4),
    Experiment("MAGM, SMACT 80 %, 2 GB", 90, _policy("magm", 0.8, 2), crashes=2),
    Experiment("MAGM, SMACT 80 %, 5 GB", 90, _policy("magm", 0.8, 5), crashes=2),
    Experiment("LUG, SMACT 80 %, 5 GB", 90, _policy("lug", 0.8, 5), crashes=2, total="72 %, least"),
    Experiment("MAGM, SMACT 75 %, 5 GB", 90, _policy("magm", 0.75, 5), crashes=1),
    Experiment("MAGM, SMACT 85 %, 5 GB", 90, _policy("magm", 0.85, 5), crashes=2),
    Experiment("MUG, SMACT 80 %, 5 GB", 90, POLICIES["mug"], total="poor"),
)
ESTIMATED: Tuple[Experiment, ...] = (
    _magm("MAGM, Horus", "horus", 1.0, 1),
    _magm("MAGM, FakeTensor", "faketensor", 1.0, 0),
    _magm("MAGM, GPUMemNet", "gpumemnet", 1.0, 1),
    _magm("MAGM, GPUMemNet refit", "gpumemnet-refit", 1.0, 1),
    _magm("MAGM, SMACT 80 %, Horus", "horus", 0.8, 0),
    _magm("MAGM, SMACT 80 %, FakeTensor", "faketensor", 0.8, 0),
    _magm("MAGM, SMACT 80 %, GPUMemNet", "gpumemnet", 0.8, 0, "75 %, least"),
    _magm("MAGM, SMACT 80 %, GPUMemNet refit", "gpumemnet-refit", 0.8, 0, "75 %, least"),
)
"""GPUMemNet is the estimator that ships; the refit is a network like it, trained on our measured runs."""
_80 = _policy("magm", 0.8, 0)
HEAVY: Tuple[Experiment, ...] = (
    Experiment("exclusive", 60, POLICIES["exclusive"], crashes=0, mj=33.198),
    Experiment("RR, streams", 60, _policy("round-robin", 1.0, 0), mode=STREAMS, crashes=9, mj=34.745),
    Experiment("RR, MPS", 60, _policy("round-robin", 1.0, 0), crashes=6, mj=29.601),
    Experiment("MAGM, 2 GB, 80 %", 60, _policy("magm", 0.8, 2), crashes=4, mj=28.781),
    Experiment("LUG, 2 GB, 80 %", 60, _policy("lug", 0.8, 2), crashes=4),
    Experiment("MAGM, Horus, 80 %", 60, _80, "horus", crashes=2, mj=29.042),
    Experiment("MAGM, FakeTensor, 80 %", 60, _80, "faketensor", crashes=3, mj=30.306),
    Experiment("MAGM, GPUMemNet, 80 %", 60, _80, "gpumemnet", crashes=1, mj=28.502, total="70 %"),
    Experiment("MAGM, GPUMemNet refit, 80 %", 60, _80, "gpumemnet-refit", crashes=1, mj=28.502, total="70 %"),
)
"""70 % is the length of figure 6.14's curves."""
_chosen = with_slowdown(POLICIES["budget"], CHOSEN)
OURS: Tuple[Experiment, ...] = tuple(
    Experiment(f"{policy}, {estimator}", tasks, POLICIES[policy], estimator)
    for tasks in (90, 60)
    for policy, estimator in (
        ("slurm", "trace"),
        ("slurm-pack", "text"),
        ("slurm-pack", "trace"),
        ("slurm-spread", "trace"),
    )
) + tuple(Experiment(f"limit {CHOSEN:g}, trace", tasks, _chosen, "trace", "mps-shared") for tasks in (90, 60))
"""The same traces under Slurm with this project's requests."""
SPLIT: Tuple[Experiment, ...] = tuple(
    Experiment(f"MIG, {gpus}x{name}", tasks, POLICIES["slurm-pack"], "trace", MIG, mig=(layout,) * gpus)
    for tasks in (90, 60)
    for gpus in (1, 2)
    for name, layout in LAYOUTS.items()
)
"""All layouts on one or two of the four GPUs: some tasks need two that are not split."""


class OverTime(NamedTuple):
    """Means over the time of a run and over the four GPUs."""

    memory: float
    """Share of the GPU's memory."""
    active: float
    watts: float


OVER_TIME: Mapping[str, OverTime] = {
    "exclusive": OverTime(0.25, 0.61, 217.0),
    "MAGM, GPUMemNet, 80 %": OverTime(0.55, 0.85, 254.0),
    "MAGM, GPUMemNet refit, 80 %": OverTime(0.55, 0.85, 254.0),
}
"""Figures 6.13 to 6.15, 60 tasks. Shared GPUs draw 271 W in the median: they are at their limit of 275 W."""


def experiments() -> List[Experiment]:
    """Every one, each once."""
    groups = (ORACLES, RECOVERY_ONLY, ESTIMATED, HEAVY, OURS, SPLIT)
    return list(dict.fromkeys(one for group in groups for one in group))
