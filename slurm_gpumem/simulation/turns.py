"""Who makes room for whom: slots, and preemption by jobs of a higher priority."""

from __future__ import annotations

from typing import Dict, List, Optional, Protocol, Sequence, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.simulation.gpu_state import GpuState, Task
from slurm_gpumem.simulation.places import PlaceIndex
from slurm_gpumem.simulation.types import WHOLE, Setup, SimJob


class Engine(Protocol):
    """What the choice asks of the engine."""

    setup: Setup
    index: PlaceIndex
    asks: Dict[int, Optional[int]]

    def need_mib(self, asked: Optional[int]) -> int: ...


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
