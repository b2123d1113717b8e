"""Who is next: the first in the queue only, or Slurm's main scheduler with backfill behind it."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import AbstractSet, Deque, Dict, List, NamedTuple, Optional, Protocol, Sequence, Set, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.simulation.gpu_index import GpuIndex
from slurm_gpumem.simulation.gpu_state import GpuState, Task
from slurm_gpumem.simulation.types import WHOLE, Policy, Setup, SimJob, Timing

_DECIDE, _SHARE, _BACKFILL = range(3)
_NEVER = float("inf")
Waiting = Tuple[int, float, int, SimJob]
"""Its place in the order: priority, since when it waits, number."""


class Engine(Protocol):
    """What a queue asks of the engine."""

    now: float
    policy: Policy
    timing: Timing
    setup: Setup
    index: GpuIndex
    asks: Dict[int, Optional[int]]
    ends: List[Tuple[float, int, Task]]

    def place(
        self, job: SimJob, *, banned: AbstractSet[int] = ..., idle: bool = ..., share: bool = ...
    ) -> bool: ...
    def need_mib(self, asked: Optional[int]) -> int: ...
    def limit_of(self, job: SimJob) -> float: ...
    def preempt(self, job: SimJob) -> bool: ...
    def wake_at(self, moment: float, phase: int) -> None: ...


class Queue(Protocol):
    """What the engine asks of a queue."""

    def __len__(self) -> int: ...
    def add(self, job: SimJob) -> None: ...
    def add_again(self, job: SimJob) -> None: ...
    def schedule(self, freed: bool) -> None: ...
    def wake(self, phase: int) -> None: ...


def queue_for(engine: Engine) -> Queue:
    """The queue that a setup asks for."""
    if engine.policy.backfill:
        return SlurmQueue(engine)
    return TimedQueue(engine) if engine.timing.decide_s else FirstQueue(engine)


class FirstQueue:
    """First come, first served; jobs that crashed go before all others. Decisions take no time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: Deque[SimJob] = deque()
        self._again: Deque[SimJob] = deque()
        self._new = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._again)

    def add(self, job: SimJob) -> None:
        self._waiting.append(job)
        self._new |= len(self._waiting) == 1

    def add_again(self, job: SimJob) -> None:
        self._again.append(job)
        self._new = True

    def schedule(self, freed: bool) -> None:
        if not (freed or self._new):
            return
        self._new = False
        place = self._engine.place
        while self._again and place(self._again[0]):
            self._again.popleft()
        if self._again and self._engine.policy.recovery_blocks:
            return
        while self._waiting and place(self._waiting[0]):
            self._waiting.popleft()

    def wake(self, phase: int) -> None:
        raise AssertionError("it never asks to be woken")


class TimedQueue(FirstQueue):
    """The same with decisions that take time, one job each, as the published resource manager makes them.

    A decision looks for idle GPUs after `decide_s`; where there are none, for GPUs to share `share_s` later.
    """

    _asleep = True

    def schedule(self, freed: bool) -> None:
        if self._asleep and len(self):
            self._asleep = False
            self._later(self._engine.timing.decide_s, _DECIDE)

    def wake(self, phase: int) -> None:
        queue = self._again or self._waiting
        idle, share = phase == _DECIDE, phase == _SHARE
        blocked = bool(self._again) and self._engine.policy.recovery_blocks
        if queue and self._engine.place(queue[0], idle=idle, share=share):
            queue.popleft()
        elif queue and idle and not blocked and not self._engine.policy.whole:
            self._later(self._engine.timing.share_s, _SHARE)
            return
        if len(self):
            self._later(self._engine.timing.decide_s, _DECIDE)
        else:
            self._asleep = True

    def _later(self, seconds: float, phase: int) -> None:
        self._engine.wake_at(self._engine.now + seconds, phase)


class Reservation(NamedTuple):
    """When the first of the queue is expected to start, and on which nodes."""

    moment: float
    nodes: AbstractSet[int]


class SlurmQueue:
    """By priority; every `backfill_s` later jobs may start that do not delay one that waits for its place.

    A job that has waited for less than `reserve_after_s` keeps nobody waiting (bf_min_prio_reserve).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: List[Waiting] = []
        self._new = False
        self._changed = False
        """Since the last pass of backfill: another pass over the same jobs and GPUs finds nothing new."""
        self._woken = False
        self._reserved_for: Optional[int] = None
        self._reservation = Reservation(_NEVER, frozenset())

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: SimJob) -> None:
        self._add(job, job.arrival)

    def add_again(self, job: SimJob) -> None:
        # priority/multifactor counts its age from the requeue; under priority/basic it would keep its place.
        self._add(job, self._engine.now)

    def _add(self, job: SimJob, since: float) -> None:
        heappush(self._waiting, (-job.priority, since, job.number, job))
        self._new = self._changed = True

    def schedule(self, freed: bool) -> None:
        self._changed |= freed
        if freed or self._new:
            self._new = False
            self._pass(backfill=False)
        if len(self._waiting) > 1 and self._changed and not self._woken:
            self._woken = True
            period = self._engine.timing.backfill_s
            self._engine.wake_at((self._engine.now // period + 1) * period, _BACKFILL)

    def wake(self, phase: int) -> None:
        """Time for backfill."""
        self._woken = self._changed = False
        self._pass(backfill=True)

    def _pass(self, *, backfill: bool) -> None:
        """Start what finds its place; behind a job with a reservation, only what does not delay it."""
        engine, timing = self._engine, self._engine.timing
        tested: List[Waiting] = []
        failed: Set[Tuple[int, Optional[int], bool]] = set()
        reserved = False
        for _ in range(min(timing.backfill_depth, len(self._waiting))):
            entry = heappop(self._waiting)
            _, since, _, job = entry
            fits = not reserved or engine.now + engine.limit_of(job) <= self._reservation.moment
            key = (job.gpus, engine.asks[job.number], fits)
            banned = frozenset() if fits else self._reservation.nodes
            if key not in failed and engine.place(job, banned=banned):
                continue
            failed.add(key)
            tested.append(entry)
            if engine.preempt(job):
                continue
            if not reserved and engine.now - since >= timing.reserve_after_s:
                if not backfill:
                    break
                self._reserve(job)
                reserved = True
        for entry in tested:
            heappush(self._waiting, entry)

    def _reserve(self, job: SimJob) -> None:
        stale = self._reservation.moment <= self._engine.now
        if self._reserved_for != job.number or stale:
            self._reserved_for = job.number
            self._reservation = expected_start(self._engine, job)


def expected_start(engine: Engine, job: SimJob) -> Reservation:
    """When and where running jobs that use up their limits make room for it."""
    asked = engine.asks[job.number]
    index = engine.index
    if asked != WHOLE:
        need = engine.need_mib(asked)
        free: Dict[int, int] = {}
        for moment, _, task in engine.ends:
            for gpu in task.gpus:
                state = index.gpus[gpu]
                free[gpu] = free.get(gpu, index.free_mib(state)) + task.granted_mib
                if free[gpu] >= need and (not index.is_split(gpu) or task.granted_mib == need):
                    return Reservation(moment, frozenset((index.node_of(gpu),)))
        return Reservation(_NEVER, frozenset())
    nodes_needed, each = index.nodes_for(job.gpus)
    ready = set(index.nodes_with_idle(each))
    busy: Dict[int, int] = {}
    idle: Dict[int, int] = {}
    for moment, _, task in engine.ends:
        for gpu in task.gpus:
            busy[gpu] = busy.get(gpu, len(index.gpus[gpu].tasks)) - 1
            if busy[gpu] == 0 and not index.is_split(gpu):
                node = index.node_of(gpu)
                idle[node] = idle.get(node, index.idle_gpus(node)) + 1
                if idle[node] >= each:
                    ready.add(node)
        if len(ready) >= nodes_needed:
            return Reservation(moment, frozenset(sorted(ready)[:nodes_needed]))
    return Reservation(_NEVER, frozenset())


def check_turns(setup: Setup) -> None:
    """UsageError where jobs could never get on, or the policy knows no requeueing."""
    turns, policy = setup.turns, setup.policy
    if turns.slot_s and turns.slot_s <= turns.save_s + turns.restart_s:
        raise UsageError(
            f"a slot of {turns.slot_s:g} s leaves no time to train: "
            f"{turns.save_s:g} s to save, {turns.restart_s:g} s to begin again"
        )
    if (turns.slot_s or turns.preempt) and not policy.backfill:
        raise UsageError(
            f"the policy {policy.name} requeues no jobs; slots and preemption need one like slurm-pack"
        )


def victims_for(engine: Engine, job: SimJob) -> List[Task]:
    """The running jobs of a lower priority that hold least of those whose leaving makes room for it."""
    asked = engine.asks[job.number]
    if asked == WHOLE:
        return _on_nodes(engine, job)
    need = engine.need_mib(asked)
    found = (_on_gpu(gpu, job, need - engine.index.free_mib(gpu)) for gpu in engine.index.gpus)
    return min((tasks for tasks in found if tasks), key=_held, default=[])


def _on_gpu(gpu: GpuState, job: SimJob, missing_mib: int) -> List[Task]:
    """Those of the lowest priority first, of these the last that began; none where all are not enough."""
    chosen: List[Task] = []
    for task in sorted(_weaker(gpu.tasks, job), key=lambda task: (task.job.priority, -task.start)):
        if missing_mib <= 0:
            break
        chosen.append(task)
        missing_mib -= task.granted_mib
    return chosen if missing_mib <= 0 else []


def _on_nodes(engine: Engine, job: SimJob) -> List[Task]:
    per_node = engine.setup.fleet.gpus_per_node
    nodes_needed = -(-job.gpus // per_node)
    each = job.gpus if nodes_needed == 1 else per_node
    ranked: List[Tuple[int, int, List[Task]]] = []
    for node in range(engine.setup.fleet.nodes):
        gpus = engine.index.gpus[node * per_node : (node + 1) * per_node]
        free = [gpu.tasks for gpu in gpus if len(_weaker(gpu.tasks, job)) == len(gpu.tasks)]
        if len(free) >= each:
            tasks = [task for held in sorted(free, key=_held)[:each] for task in held]
            ranked.append((_held(tasks), node, tasks))
    if len(ranked) < nodes_needed:
        return []
    ranked.sort(key=lambda entry: entry[:2])
    return list(dict.fromkeys(task for _, _, tasks in ranked[:nodes_needed] for task in tasks))


def _weaker(tasks: Sequence[Task], job: SimJob) -> List[Task]:
    return [task for task in tasks if task.job.priority < job.priority and not task.leaves]


def _held(tasks: Sequence[Task]) -> int:
    return sum(task.granted_mib for task in tasks)
