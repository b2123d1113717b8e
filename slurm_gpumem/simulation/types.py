"""What a simulation is given: jobs, GPUs, and how they are shared."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Tuple

from slurm_gpumem.utilization.interference import JobLoad

MIG = "mig"
MODES = ("mps", "mps-shared", "timeslice", MIG, "exclusive")
"""How jobs on one GPU run: "mps" has a server for each user (two users' servers take turns), "mps-shared" one
server for all, "timeslice" none, "mig" instances that do not feel each other, "exclusive" one job only."""
WHOLE = 0
"""As a request in MiB: a GPU to itself."""


class SimJob(NamedTuple):
    """One job of a trace."""

    number: int
    arrival: float
    """Seconds after the start of the trace."""
    work: float
    """Seconds that it takes alone on its GPUs."""
    gpus: int
    peak_mib: int
    """On each GPU; reached `startup_s` after its start."""
    load: JobLoad
    """How it drives a GPU when alone there."""
    startup_mib: int = 1
    startup_s: float = 0.0
    user: str = ""
    name: str = ""
    """Jobs of one user and name are runs of the same thing."""
    partition: str = ""
    limit: float = 0.0
    """Its time limit in seconds; 0 for none."""
    priority: int = 0
    """Higher runs first; equal ones in order of arrival."""
    estimates: Mapping[str, int] = {}
    """By estimator: MiB that the job asks for on each GPU."""


class Fleet(NamedTuple):
    """The GPUs, all of one kind."""

    nodes: int
    gpus_per_node: int
    memory_mib: int
    """Of each GPU, as far as jobs may have it."""
    name: str = "GPU"
    max_watts: float = 400.0
    """That its kind of GPU may draw."""
    power_limit: float = 0.0
    """Watts that this site or machine lets each GPU draw; 0: as many as its kind may."""

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.nodes * self.gpus_per_node


class Policy(NamedTuple):
    """Where a job goes and when it is let in."""

    name: str
    order: str
    """Which GPU of those that qualify: "first", "best" (least free memory), "worst" (most free memory),
    "spread" (most free memory on the first node), "least" and "most" active, "next" (round robin)."""
    granted: bool
    """True: memory is given out as jobs ask for it and a job dies that exceeds its part (Slurm's shards).
    False: what counts is the memory that is free at the moment, as a monitor sees it."""
    whole: bool = False
    """Every job gets GPUs to itself."""
    idle_first: bool = False
    """An idle GPU is taken before any that would be shared."""
    margin_mib: int = 0
    """Free memory that a shared GPU must have beyond what the job asks for."""
    max_active: float = 1.0
    """A GPU whose activity is above this share takes no further job; 1: no such condition."""
    window_s: float = 0.0
    """Activity is the mean over this time; 0: the present value."""
    by_activity: float = 0.0
    """A slowdown: shares also cover the job's activity, so that it stays within it; 0: memory only."""
    recovery_blocks: bool = False
    """While a crashed job waits for a GPU to itself, no other is placed on a GPU with others."""
    backfill: bool = False
    """Slurm's main scheduler and backfill; else strictly the first of the queue."""


class Timing(NamedTuple):
    """How long decisions take, in seconds."""

    decide_s: float = 0.0
    """From one decision to the next, one job each; 0: at once, as many as fit."""
    share_s: float = 0.0
    """More than that for a decision to share a GPU."""
    recovery_s: float = 0.0
    """From a crash until the job waits again."""
    backfill_s: float = 30.0
    backfill_depth: int = 100
    reserve_after_s: float = 0.0
    """Jobs behind one that has waited for less than this may start although it does not fit yet."""
    default_limit_s: float = 86_400.0
    """The time limit of jobs without one, for backfill."""


class Turns(NamedTuple):
    """When a running job makes room for others and waits again, behind those that wait."""

    slot_s: float = 0.0
    """It saves a checkpoint and leaves after this time; 0: it runs to its end."""
    save_s: float = 30.0
    """The end of a slot or of a grace time in which it saves and does not train."""
    restart_s: float = 60.0
    """The start of a further run until it goes on from its checkpoint."""
    preempt: bool = False
    """Jobs take the places of running ones with a lower priority (PreemptMode=REQUEUE)."""
    grace_s: float = 0.0
    """Until a preempted job is killed (GraceTime). One that needs longer to save loses this run's work."""


class Setup(NamedTuple):
    """One way to run a trace."""

    fleet: Fleet
    policy: Policy
    estimator: str = "oracle"
    mode: str = "mps"
    timing: Timing = Timing()
    ladder: Tuple[int, ...] = ()
    """After a crash: percent more of what it asked for, step by step; then a GPU to itself."""
    shard_mib: int = 1024
    turns: Turns = Turns()
    record: bool = False
    """Keep what each GPU did over time."""
    mig: Tuple[Tuple[int, ...], ...] = ()
    """Mode "mig": layouts of the first GPUs, slices of memory of each instance; the others stay whole."""


# Watts of a GPU by its activity.
#
# On the jobs that the project measured alone on an H200, power is a line of SM activity and DRAM activity;
# other GPUs get the same line, scaled to the limit of their kind. `lab.score.energy` fits it and
# compares it with sets of jobs. It is meant for comparing ways to run the same work, not for a power bill.

IDLE, PER_ACTIVE, PER_DRAM = 102.6 / 700, 444.5 / 700, 188.0 / 700
"""Of the power limit."""
MAX_WATTS: Mapping[str, float] = {"a100": 400.0, "h100": 700.0, "h200": 700.0, "v100": 300.0}
"""Power limits as NVIDIA's data sheets have them, SXM form, by the first word of the GPU's name."""
USUAL_MAX_WATTS = 400.0


def max_watts(gpu_name: str) -> float:
    """The power limit of a GPU by its name in the table."""
    return MAX_WATTS.get(gpu_name.split("-")[0].lower(), USUAL_MAX_WATTS)


def watts(fleet: Fleet, active: float, dram: float) -> float:
    """Of one GPU at these shares of activity.

    A limit below that of its kind cuts the line off; what the lower clocks cost in speed is not simulated.
    """
    limit = fleet.power_limit or fleet.max_watts
    return min(limit, fleet.max_watts * (IDLE + PER_ACTIVE * active + PER_DRAM * dram))
