"""The jobs of `two-users.csv`, and the ways to run them, on the dev cluster and in the simulator."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Tuple

from lab.places import SIMULATION
from slurm_gpumem.simulation.trace_file import read_trace
from slurm_gpumem.simulation.types import SimJob, Turns

LONG, SHORT = "a", "b"
SECONDS_PER_HOUR = 3.0
"""Of the dev cluster's time for an hour of the trace."""
SCALE = SECONDS_PER_HOUR / 3600
STEP_S = 0.25
SLOT_S = 7200.0
URGENT = 1
"""The priority of the short jobs where they go first."""
AGE = ("PriorityType=priority/multifactor", "PriorityWeightAge=100000")
FIRST = (*AGE, "PartitionName=urgent Nodes=ALL PriorityTier=10 DefMemPerCPU=100 State=UP")
PREEMPT = (*FIRST, "PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE")
GRACE_S = 10


class Way(NamedTuple):
    """One way to run the jobs."""

    name: str
    conf: Tuple[str, ...]
    """Lines of slurm.conf."""
    turns: Turns = Turns()
    """In the trace's time."""
    checkpoint: bool = False
    grace_s: int = 0
    """GraceTime of the long jobs' partition, in the cluster's time."""
    shares: bool = False
    """Two jobs on a GPU, on half as many GPUs."""
    keeps_place: bool = False
    """Whether a requeued job goes back to its first place: the simulator plays no such queue."""

    @property
    def urgent(self) -> bool:
        """Whether the short jobs go first."""
        return any("urgent" in line for line in self.conf)


_SLOT = Turns(SLOT_S)
_LOST = Turns(preempt=True)
_SAVED = Turns(preempt=True, grace_s=60.0)
WAYS: Dict[str, Way] = {
    way.name: way
    for way in (
        Way("age", AGE),
        Way("age-slots", AGE, _SLOT, checkpoint=True),
        Way("age-shares", AGE, shares=True),
        Way("age-shares-slots", AGE, _SLOT, checkpoint=True, shares=True),
        Way("basic-slots", (), _SLOT, checkpoint=True, keeps_place=True),
        Way("first", FIRST),
        Way("first-slots", FIRST, _SLOT, checkpoint=True),
        Way("preempt", PREEMPT, _LOST),
        Way("preempt-saved", PREEMPT, _SAVED, checkpoint=True),
        Way(
            "preempt-grace",
            (*PREEMPT, "SlurmctldParameters=preempt_send_user_signal"),
            _SAVED,
            checkpoint=True,
            grace_s=GRACE_S,
        ),
    )
}
WHAT: Dict[str, str] = {
    "age": "first come, first served",
    "age-slots": "the same, slots",
    "age-shares": "first come, first served; shares",
    "age-shares-slots": "the same, slots",
    "basic-slots": "priority/basic, slots",
    "first": "short jobs first",
    "first-slots": "the same, slots",
    "preempt": "short jobs preempt, no checkpoint",
    "preempt-saved": "the same, checkpoint at SIGTERM (GraceTime=0)",
    "preempt-grace": f"the same, checkpoint at the user's signal (GraceTime={GRACE_S})",
}


def trace(way: Way) -> List[SimJob]:
    """The jobs; the short ones with a higher priority where they go first."""
    jobs = read_trace(SIMULATION / "two-users.csv")
    return [job._replace(priority=URGENT if way.urgent and job.user == SHORT else 0) for job in jobs]


def steps_of(job: SimJob) -> int:
    """On the dev cluster."""
    return round(job.work * SCALE / STEP_S)
