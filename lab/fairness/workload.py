"""The jobs of `two-users.csv`, and the ways to run them, on the dev cluster and in the simulator."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Tuple

from lab.places import SIMULATION
from lab.simulate.trace_file import read_trace
from slurm_gpumem.simulation.types import SimJob, Turns

LONG, SHORT = "a", "b"
SECONDS_PER_HOUR = 6
"""Of the dev cluster's time for an hour of the trace."""
SCALE = SECONDS_PER_HOUR / 3600
STEP_S = 0.5
SLOT_H = 2
AGE = ("PriorityType=priority/multifactor", "PriorityWeightAge=100000")
FIRST = (*AGE, "PartitionName=urgent Nodes=ALL PriorityTier=10 DefMemPerCPU=100 State=UP")
PREEMPT = (*FIRST, "PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE", "KillWait=30")
"""KillWait is Slurm's default here, not the dev cluster's 5 s: it is the time to save at SIGTERM."""


class Way(NamedTuple):
    """One way to run the jobs."""

    what: str
    conf: Tuple[str, ...]
    """Lines of slurm.conf."""
    slot_h: int = 0
    """Of the long jobs, in hours of the trace; 0: they know no slots and save nothing."""
    shares: bool = False
    """Two jobs on a GPU, on half as many GPUs."""

    @property
    def urgent(self) -> bool:
        """Whether the short jobs go first."""
        return any("urgent" in line for line in self.conf)

    @property
    def turns(self) -> Turns:
        """For the simulator, in the trace's time; a job that saves has the time for it."""
        preempt = any(line.startswith("PreemptMode") for line in self.conf)
        return Turns(3600.0 * self.slot_h, preempt=preempt, grace_s=60.0 if self.slot_h else 0.0)


_NO_TURNS = 24
"""A slot, in hours, that no job fills: it saves when it is preempted."""
WAYS: Dict[str, Way] = {
    "age": Way("whole GPUs, first come, first served", AGE),
    "age-slots": Way("the same, slots of 2 h", AGE, SLOT_H),
    "shares": Way("shares, first come, first served", AGE, shares=True),
    "shares-slots": Way("the same, slots of 2 h", AGE, SLOT_H, shares=True),
    "first": Way("short jobs first", FIRST),
    "first-slots": Way("the same, slots of 2 h", FIRST, SLOT_H),
    "preempt": Way("short jobs preempt, no checkpoint", PREEMPT),
    "preempt-saves": Way("the same, checkpoint", PREEMPT, _NO_TURNS),
}


def trace(way: Way) -> List[SimJob]:
    """The jobs; the short ones with a higher priority where they go first."""
    jobs = read_trace(SIMULATION / "two-users.csv")
    return [job._replace(priority=1 if way.urgent and job.user == SHORT else 0) for job in jobs]


def steps_of(job: SimJob) -> int:
    """On the dev cluster."""
    return round(job.work * SCALE / STEP_S)
