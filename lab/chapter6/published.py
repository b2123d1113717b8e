"""Chapter 6 of the dissertation: which policies were tried on which trace, and the figures that it prints.

Bars of figures 6.5 to 6.12 carry no numbers; what the text says of them is here. The curves of figures 6.13
to 6.15 are vector graphics in the authors' repository: their means over time and lengths were read from it.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.simulation.fleet_text import parse_fleet
from slurm_gpumem.simulation.policies import GB, POLICIES, with_conditions
from slurm_gpumem.simulation.types import Fleet, Policy

GPUS = "4xa100-40gb"
POWER_LIMIT = 275.0
"""Watts of each GPU in a DGX Station A100, the published machine, as nvidia-smi shows there (an A100 in a
server may draw 400)."""
STREAMS, MPS = "timeslice", "mps-shared"
"""Without MPS the published manager's tasks are processes that take turns; with it they share one server."""


class Experiment(NamedTuple):
    """One run of the published manager."""

    label: str
    tasks: int
    policy: Policy
    estimator: str = "none"
    mode: str = MPS


def machine() -> Fleet:
    """The published machine."""
    return parse_fleet(GPUS)._replace(power_limit=POWER_LIMIT)


def _policy(name: str, max_active: Optional[float] = None, margin_gb: Optional[int] = None) -> Policy:
    margin = None if margin_gb is None else margin_gb * GB
    return with_conditions(POLICIES[name], max_active=max_active, margin_mib=margin)


ORACLES: Tuple[Experiment, ...] = (
    Experiment("exclusive", 90, POLICIES["exclusive"]),
    Experiment("first fit (OFF), MPS", 90, POLICIES["first-fit"], "oracle"),
    Experiment("best fit (OBF), MPS", 90, POLICIES["best-fit"], "oracle"),
    Experiment("worst fit (OWF), MPS", 90, POLICIES["worst-fit"], "oracle"),
    Experiment("least utilized (OLUG), MPS", 90, POLICIES["least-utilized"], "oracle"),
    Experiment("worst fit (OWF), streams", 90, POLICIES["worst-fit"], "oracle", STREAMS),
)
RECOVERY_ONLY: Tuple[Tuple[Experiment, int], ...] = (
    (Experiment("RR", 90, _policy("round-robin", 1.0, 0)), 8),
    (Experiment("MAGM", 90, _policy("magm", 1.0, 0)), 5),
    (Experiment("MAGM, SMACT 80 %", 90, _policy("magm", 0.8, 0)), 4),
    (Experiment("MAGM, SMACT 80 %, 2 GB", 90, _policy("magm", 0.8, 2)), 2),
    (Experiment("MAGM, SMACT 80 %, 5 GB", 90, _policy("magm", 0.8, 5)), 2),
    (Experiment("LUG, SMACT 80 %, 5 GB", 90, _policy("lug", 0.8, 5)), 2),
    (Experiment("MAGM, SMACT 75 %, 5 GB", 90, _policy("magm", 0.75, 5)), 1),
    (Experiment("MAGM, SMACT 85 %, 5 GB", 90, _policy("magm", 0.85, 5)), 2),
)
"""With table 6.3's crashes."""
ESTIMATED: Tuple[Tuple[Experiment, int], ...] = (
    (Experiment("MAGM, Horus", 90, _policy("magm", 1.0, 0), "horus"), 1),
    (Experiment("MAGM, FakeTensor", 90, _policy("magm", 1.0, 0), "faketensor"), 0),
    (Experiment("MAGM, GPUMemNet", 90, _policy("magm", 1.0, 0), "gpumemnet"), 1),
    (Experiment("MAGM, SMACT 80 %, Horus", 90, _policy("magm", 0.8, 0), "horus"), 0),
    (Experiment("MAGM, SMACT 80 %, FakeTensor", 90, _policy("magm", 0.8, 0), "faketensor"), 0),
    (Experiment("MAGM, SMACT 80 %, GPUMemNet", 90, _policy("magm", 0.8, 0), "gpumemnet"), 0),
)
"""With table 6.4's crashes."""
HEAVY: Tuple[Tuple[Experiment, int, Optional[float]], ...] = (
    (Experiment("exclusive", 60, POLICIES["exclusive"]), 0, 33.198),
    (Experiment("RR, streams", 60, _policy("round-robin", 1.0, 0), mode=STREAMS), 9, 34.745),
    (Experiment("RR, MPS", 60, _policy("round-robin", 1.0, 0)), 6, 29.601),
    (Experiment("MAGM, 2 GB, 80 %", 60, _policy("magm", 0.8, 2)), 4, 28.781),
    (Experiment("LUG, 2 GB, 80 %", 60, _policy("lug", 0.8, 2)), 4, None),
    (Experiment("MAGM, Horus, 80 %", 60, _policy("magm", 0.8, 0), "horus"), 2, 29.042),
    (Experiment("MAGM, FakeTensor, 80 %", 60, _policy("magm", 0.8, 0), "faketensor"), 3, 30.306),
    (Experiment("MAGM, GPUMemNet, 80 %", 60, _policy("magm", 0.8, 0), "gpumemnet"), 1, 28.502),
)
"""With table 6.5's crashes and table 6.6's MJ."""
LEFT_OUT: Tuple[Experiment, ...] = (Experiment("MUG, SMACT 80 %, 5 GB", 90, POLICIES["mug"]),)
"""What the text says performed poorly, without figures."""
OURS: Tuple[Experiment, ...] = tuple(
    Experiment(f"{policy}, {estimator}", tasks, POLICIES[policy], estimator)
    for tasks in (90, 60)
    for policy, estimator in (
        ("slurm", "none"),
        ("slurm-pack", "text"),
        ("slurm-pack", "trace"),
        ("slurm-spread", "trace"),
        ("budget", "trace"),
    )
)
"""The same traces under Slurm with this project's requests."""
SAID: Mapping[str, Dict[str, str]] = {
    "6.5": {
        "worst fit (OWF), MPS": "shortest; 30.13 % less",
        "worst fit (OWF), streams": "hardly less",
    },
    "6.7": {
        "LUG, SMACT 80 %, 5 GB": "shortest; 28 % less",
        "RR": "among the longest",
        "MAGM": "among the longest",
    },
    "6.9": {"MAGM, SMACT 80 %, GPUMemNet": "shortest; about 25 % less"},
    "6.11": {"MAGM, GPUMemNet, 80 %": "30 % less (length of figure 6.14's curves)"},
}
"""What the text says of the total trace time, relative to exclusive use, by figure."""


class OverTime(NamedTuple):
    """Means over the time of a run and over the four GPUs."""

    memory: float
    """Share of the GPU's memory."""
    active: float
    watts: float


OVER_TIME: Mapping[str, OverTime] = {
    "exclusive": OverTime(0.25, 0.61, 217.0),
    "MAGM, GPUMemNet, 80 %": OverTime(0.55, 0.85, 254.0),
}
"""Figures 6.13 to 6.15, 60 tasks. Shared GPUs draw 271 W in the median: they are at their limit of 275 W."""


def experiments() -> List[Experiment]:
    """Every one, each once."""
    return [
        *ORACLES,
        *(one for one, _ in RECOVERY_ONLY),
        *(one for one, _ in ESTIMATED),
        *(one for one, _, _ in HEAVY),
        *LEFT_OUT,
        *OURS,
    ]
