"""Which GPUs a job gets: indices over all GPUs, so that a choice costs the logarithm of their number.

`idle` counts idle GPUs by node, for jobs that get GPUs to themselves. `free` has the free memory of every GPU
that lets others in (-1 for the rest). Orders other than the number of a GPU keep a sorted list as well.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import AbstractSet, Dict, Iterator, List, Optional, Sequence, Tuple

from slurm_gpumem.simulation.gpu_state import GpuState, slices_for
from slurm_gpumem.simulation.types import Fleet, Policy

# A tree of maxima over numbered places: the first place with at least some value, in logarithmic time.


class MaxTree:
    """Values by place; -1 hides a place from every search."""

    def __init__(self, values: Sequence[int]) -> None:
        self.places = len(values)
        self._leaves = 1
        while self._leaves < self.places:
            self._leaves *= 2
        self._tree: List[int] = [-1] * (2 * self._leaves)
        self._tree[self._leaves : self._leaves + self.places] = values
        for node in range(self._leaves - 1, 0, -1):
            self._tree[node] = max(self._tree[2 * node], self._tree[2 * node + 1])

    def __getitem__(self, place: int) -> int:
        return self._tree[self._leaves + place]

    def __setitem__(self, place: int, value: int) -> None:
        tree = self._tree
        node = self._leaves + place
        tree[node] = value
        node //= 2
        while node:
            left, right = tree[2 * node], tree[2 * node + 1]
            larger = left if left > right else right
            if tree[node] == larger:
                return
            tree[node] = larger
            node //= 2

    @property
    def largest(self) -> int:
        """The largest value."""
        return self._tree[1]

    def first(self, least: int, start: int = 0) -> Optional[int]:
        """The first place from `start` on whose value is at least `least`; None where there is none."""
        tree = self._tree
        if start >= self.places or tree[1] < least:
            return None
        node = self._leaves + start
        while tree[node] < least:
            # Up while this is a right child, then on to the neighbour at the right.
            while node & 1:
                node //= 2
                if not node:
                    return None
            node += 1
            if not node & (node - 1):
                return None
        while node < self._leaves:
            node *= 2
            if tree[node] < least:
                node += 1
        return node - self._leaves


Places = Tuple[int, ...]
NOWHERE: AbstractSet[int] = frozenset()
_RANKED = ("best", "worst", "least", "most")
_FEW = 64
"""Up to this number of GPUs, means over a window are brought up to date before every choice; beyond it, the
order by activity is that of each GPU's last change."""


class GpuIndex:
    """The GPUs of a fleet under one policy."""

    def __init__(self, fleet: Fleet, policy: Policy, instances: Sequence[Tuple[int, ...]] = ()) -> None:
        self.fleet, self.policy = fleet, policy
        self._instances = instances
        self.gpus = [GpuState(index) for index in range(fleet.gpus)]
        self._unsplit = [
            sum(not self.is_split(gpu.index) for gpu in self._gpus_of(node)) for node in range(fleet.nodes)
        ]
        self._idle = MaxTree(self._unsplit)
        self._free = MaxTree([fleet.memory_mib] * fleet.gpus)
        self._sorted = policy.order in _RANKED
        self._ranks: List[Tuple[float, int]] = []
        self._turn = 0
        if self._sorted:
            for gpu in self.gpus:
                gpu.rank = self._rank(gpu, 0.0)
                self._ranks.append(gpu.rank)
            self._ranks.sort()

    def node_of(self, gpu: int) -> int:
        """The node that a GPU is in."""
        return gpu // self.fleet.gpus_per_node

    def is_split(self, gpu: int) -> bool:
        """Whether a GPU has MIG instances: it is never given out whole, and no other is shared then."""
        return gpu < len(self._instances)

    def has_unsplit(self, count: int) -> bool:
        """Whether there are enough GPUs for a job that shares none, if all were idle."""
        nodes, each = self.nodes_for(count)
        return sum(unsplit >= each for unsplit in self._unsplit) >= nodes

    def nodes_for(self, count: int) -> Tuple[int, int]:
        """How many nodes a job that shares no GPU needs, and how many GPUs of each."""
        per_node = self.fleet.gpus_per_node
        return (1, count) if count <= per_node else (-(-count // per_node), per_node)

    # -- Changes -----------------------------------------------------------------------------------

    def changed(self, gpu: GpuState, now: float, *, was_idle: bool) -> None:
        """Bring the indices up to date after a change on a GPU."""
        idle = not gpu.tasks
        if idle != was_idle and not self.is_split(gpu.index):
            node = self.node_of(gpu.index)
            self._idle[node] += 1 if idle else -1
        self._free[gpu.index] = self.free_mib(gpu) if gpu.eligible else -1
        if self._sorted:
            self._rerank(gpu, now)

    def free_mib(self, gpu: GpuState) -> int:
        """Memory that a further job could have."""
        return self.fleet.memory_mib - (gpu.granted_mib if self.policy.granted else gpu.used_mib)

    def _rank(self, gpu: GpuState, now: float) -> Tuple[float, int]:
        order = self.policy.order
        if order in ("best", "worst"):
            free = self.free_mib(gpu)
            return (free if order == "best" else -free, gpu.index)
        active = gpu.mean_active(now, self.policy.window_s)
        return (active if order == "least" else -active, gpu.index)

    def _rerank(self, gpu: GpuState, now: float) -> None:
        rank = self._rank(gpu, now)
        if rank != gpu.rank:
            del self._ranks[bisect_left(self._ranks, gpu.rank)]
            gpu.rank = rank
            insort(self._ranks, rank)

    # -- Choices -----------------------------------------------------------------------------------

    def whole(self, count: int, banned: AbstractSet[int] = NOWHERE) -> Optional[Places]:
        """Idle GPUs: of one node, or whole nodes for a job that is larger than one."""
        _, each = self.nodes_for(count)
        chosen: List[int] = []
        for node in self.nodes_with_idle(each):
            if node in banned:
                continue
            idle = (gpu.index for gpu in self._gpus_of(node) if not (gpu.tasks or self.is_split(gpu.index)))
            chosen += list(idle)[:each]
            if len(chosen) >= count:
                return tuple(chosen[:count])
        return None

    def shared(
        self, count: int, need_mib: int, now: float, banned: AbstractSet[int] = NOWHERE
    ) -> Optional[Places]:
        """GPUs with that much free memory whose activity lets another job in, in the policy's order."""
        if count > self.fleet.gpus_per_node or self._free.largest < need_mib:
            return None
        by_node: Dict[int, List[int]] = {}
        for gpu in self._in_order(need_mib, now):
            node = self.node_of(gpu)
            if node in banned or not self._has_room(gpu, need_mib):
                continue
            members = by_node.setdefault(node, [])
            members.append(gpu)
            if len(members) == count:
                if self.policy.order == "next":
                    self._turn = (members[-1] + 1) % self.fleet.gpus
                if self.policy.order == "spread":
                    return self._freest(node, count, need_mib)
                return tuple(members)
        return None

    def _has_room(self, gpu: int, need_mib: int) -> bool:
        """Whether this memory of a GPU is free; under MIG, an instance of this size."""
        if self._free[gpu] < need_mib or not self._instances:
            return self._free[gpu] >= need_mib
        if not self.is_split(gpu):
            return False
        taken = sum(task.granted_mib == need_mib for task in self.gpus[gpu].tasks)
        return taken < self._instances[gpu].count(slices_for(need_mib, self.fleet.memory_mib))

    def _in_order(self, need_mib: int, now: float) -> Iterator[int]:
        free, order = self._free, self.policy.order
        if not self._sorted:
            start = self._turn if order == "next" else 0
            place = free.first(need_mib, start)
            while place is not None:
                yield place
                place = free.first(need_mib, place + 1)
            place = free.first(need_mib) if start else None
            while place is not None and place < start:
                yield place
                place = free.first(need_mib, place + 1)
            return
        if self.policy.window_s and order in ("least", "most") and len(self.gpus) <= _FEW:
            for gpu in self.gpus:
                self._rerank(gpu, now)
        begin = bisect_left(self._ranks, (need_mib, -1)) if order == "best" else 0
        for place in range(begin, len(self._ranks)):
            key, gpu_index = self._ranks[place]
            if order == "worst" and -key < need_mib:
                return
            if free[gpu_index] >= need_mib:
                yield gpu_index

    def idle_gpus(self, node: int) -> int:
        """Number of idle GPUs of a node."""
        return self._idle[node]

    def nodes_with_idle(self, count: int) -> Iterator[int]:
        """Nodes with at least that number of idle GPUs, in order."""
        node = self._idle.first(count)
        while node is not None:
            yield node
            node = self._idle.first(count, node + 1)

    def _freest(self, node: int, count: int, need_mib: int) -> Places:
        able = [gpu.index for gpu in self._gpus_of(node) if self._has_room(gpu.index, need_mib)]
        able.sort(key=lambda gpu: (-self._free[gpu], gpu))
        return tuple(able[:count])

    def _gpus_of(self, node: int) -> List[GpuState]:
        first = node * self.fleet.gpus_per_node
        return self.gpus[first : first + self.fleet.gpus_per_node]
