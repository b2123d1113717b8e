"""From a tape to the allocator's events: parameters, then steps of forward, backward and optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Sequence, Set, Tuple

from slurm_gpumem.memory.allocator import FREE, AllocatorStats, CachingAllocator
from slurm_gpumem.memory.structural.tape import DUST, Tape, Tensor

WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, WORKSPACE = range(5)
# A key says its category: each has a range of integers. Activations alternate between two halves of
# theirs, so that what survives a step (its output, its batch) does not collide with the next step's.
_RANGE = 1 << 40
_OTHER_STEP = 1 << 39
_FLOWING = 1 << 38
_GRADS = _RANGE * GRADIENTS
_STATES = _RANGE * OPTIMIZER
_BASE = _RANGE * ACTIVATIONS
_WORK = _RANGE * WORKSPACE

_DUST = _FLOWING - 1
_MARK = (-1, -2)
"""Stands in a stream where the first matrix product is."""

_Events = List[Tuple[int, int]]


@dataclass(frozen=True)
class StepPlan:
    """What besides the tape decides a step."""

    states: int
    """Copies of the parameters that the optimizer keeps."""
    temporaries: int
    """Copies that its step needs for a moment."""
    cublas_workspace: int
    accumulation: int = 1
    data_parallel: bool = False
    steps: int = 2


@dataclass(frozen=True)
class Replay:
    """What the allocator says of the stream, and what was alive at its peak."""

    stats: AllocatorStats
    at_peak: Dict[int, int]
    """Bytes by category at the moment of peak_allocated."""
    phase: str
    """Where the peak fell: forward, backward or optimizer."""


def replay(tape: Tape, plan: StepPlan) -> Replay:
    """Play `plan.steps` training steps through the caching allocator."""
    events: _Events = []
    phases: List[Tuple[int, str]] = [(0, "setup")]
    events += enumerate(tape.params)
    events += enumerate(tape.frozen, len(tape.params))
    if plan.data_parallel:
        events += enumerate(tape.params, _GRADS + len(tape.params))
    stream = _Stream(tape)
    keep: _Events = []
    passes = 0
    for step in range(plan.steps):
        if step:
            events += [(_GRADS + index, FREE) for index in range(len(tape.params))]
        for micro in range(min(plan.accumulation, 2)):
            base = _BASE + (_OTHER_STEP if passes % 2 else 0)
            first = passes == 0
            passes += 1
            phases.append((len(events), "forward"))
            events += [(base + store, tape.sizes[store]) for store in tape.inputs]
            events += [(key, FREE) for key, kind in keep if kind == 0]
            at = len(events) + stream.forward_matmul if stream.forward_matmul >= 0 else -1
            events += [(key + base if key < _RANGE else key, size) for key, size in stream.forward]
            if first and at >= 0 and plan.cublas_workspace:
                events.insert(at, (_WORK + _OTHER_STEP, plan.cublas_workspace))
            events += [(key, FREE) for key, kind in keep if kind == 1]
            phases.append((len(events), "backward"))
            at = len(events) + stream.backward_matmul if stream.backward_matmul >= 0 else -1
            if micro:
                events += _accumulating(stream.backward, base)
            else:
                events += [(key + base if key < _RANGE else key, size) for key, size in stream.backward]
            if first and at >= 0 and plan.cublas_workspace:
                events.insert(at, (_WORK + _OTHER_STEP + 1, plan.cublas_workspace))
            keep = [(base + store, 0) for store in tape.inputs]
            keep += [(base + store, 1) for store in stream.survivors]
        phases.append((len(events), "optimizer"))
        events += _update(tape.params, plan, first=step == 0)
    allocator = CachingAllocator()
    allocator.replay(events)
    stats = allocator.stats()
    phase = [name for start, name in phases if start <= stats.peak_event][-1]
    return Replay(stats, _alive(events, stats.peak_event), phase)


def _accumulating(backward: _Events, base: int) -> _Events:
    """A backward pass whose parameter gradients are added to those that exist already."""
    events: _Events = []
    for key, size in backward:
        if _GRADS <= key < _STATES:
            passing = key - _GRADS + _WORK + _FLOWING
            events += [(passing, size), (passing, FREE)]
        else:
            events.append((key + base if key < _RANGE else key, size))
    return events


def _update(params: Sequence[int], plan: StepPlan, *, first: bool) -> _Events:
    """The optimizer's step: states at the first one, and the temporaries of its foreach operations."""
    events: _Events = []
    if first:
        for index, size in enumerate(params):
            events += [(_STATES + index * 8 + state, size) for state in range(plan.states)]
    temporaries = list(enumerate(list(params) * plan.temporaries, _STATES + _OTHER_STEP))
    events += temporaries
    events += [(key, FREE) for key, _ in temporaries]
    return events


def _alive(events: _Events, last: int) -> Dict[int, int]:
    live: Dict[int, int] = {}
    for key, size in events[: last + 1]:
        if size == FREE:
            del live[key]
        else:
            live[key] = size
    result = dict.fromkeys(range(5), 0)
    for key, size in live.items():
        result[key // _RANGE] += -(-size // 512) * 512
    return result


def _without_dust(events: _Events, small: Set[int]) -> Tuple[_Events, int]:
    """The events of what is worth following, and where the first matrix product is among them."""
    kept: _Events = []
    mark = -1
    for event in events:
        key, size = event
        if size >= DUST:
            kept.append(event)
        elif size >= 0:
            small.add(key)
        elif size == FREE:
            if key not in small:
                kept.append(event)
            else:
                small.discard(key)
        else:
            mark = len(kept)
    return kept, mark


class _Stream:
    """The events of one forward and one backward pass; activations' keys still lack their base."""

    def __init__(self, tape: Tape) -> None:
        self.forward: _Events = []
        self.backward: _Events = []
        self.forward_matmul = -1
        """Position of the first matrix product in `forward`; -1: none."""
        self.backward_matmul = -1
        self.survivors = [tensor.store for tensor in tape.survivors if tensor.bytes >= DUST]
        """Storages that the loop's variables keep after the backward pass."""
        self._tape = tape
        self._savers = [0] * len(tape.sizes)
        for op in tape.ops:
            for store in op.saved:
                self._savers[store] += 1
        for store in (*tape.inputs, *self.survivors):
            # Counted as saved once more: the loop's variable does not let go of it.
            self._savers[store] += 1
        self._run_forward()
        self._run_backward()
        small: Set[int] = set()
        self.forward, self.forward_matmul = _without_dust(self.forward, small)
        self.backward, self.backward_matmul = _without_dust(self.backward, small)
        # Small parameters' gradients, and those of parameters that no operation used: keep the books even.
        given = {key for key, size in self.backward if size != FREE and _GRADS <= key < _STATES}
        for index, size in enumerate(tape.params):
            if _GRADS + index not in given:
                self.backward.append((_GRADS + index, size))
        if tape.dust:
            self.forward.insert(0, (_DUST, tape.dust))
            self.forward_matmul += self.forward_matmul >= 0
            self.backward.append((_DUST, FREE))

    def _run_forward(self) -> None:
        tape, savers, events = self._tape, self._savers, self.forward
        last_use = [-1] * len(tape.sizes)
        for index, op in enumerate(tape.ops):
            for tensor in op.ins:
                last_use[tensor.store] = index
            last_use[op.out.store] = index
        end = len(tape.ops) - 1
        for store, until in tape.held:
            last_use[store] = max(last_use[store], min(until, end))
        for store in tape.cached:
            last_use[store] = end
        leaving: Dict[int, List[int]] = {}
        for store, index in enumerate(last_use):
            if index >= 0 and not savers[store]:
                leaving.setdefault(index, []).append(store)
        defined = set(tape.inputs)
        sizes = tape.sizes
        multiplied = False
        for index, op in enumerate(tape.ops):
            if op.matmul and not multiplied:
                multiplied = True
                events.append(_MARK)
            store = op.out.store
            if store not in defined:
                defined.add(store)
                events.append((store, sizes[store]))
            for kept in op.kept:
                events.append((kept, sizes[kept]))
            for size in op.work:
                events += [(_WORK, size), (_WORK, FREE)]
            if index in leaving:
                events += [(store, FREE) for store in leaving[index]]
            if not op.out.grad:
                events += [(kept, FREE) for kept in op.kept]

    def _run_backward(self) -> None:
        tape, savers, events = self._tape, self._savers, self.backward
        owners: Dict[int, int] = {}
        grads: Dict[int, int] = {}
        count = _FLOWING
        multiplied = False

        def release(key: int) -> None:
            owners[key] -= 1
            if not owners[key]:
                del owners[key]
                events.append((key, FREE))

        def accumulate(tensor: Tensor, key: int) -> None:
            """Autograd's sum over several consumers: in place where the first gradient has no other owner."""
            nonlocal count
            old = grads.get(tensor.slot)
            if old is None:
                grads[tensor.slot] = key
            elif old != key and owners[old] == 1:
                release(key)
            else:
                count += 1
                events.append((count, tensor.bytes))
                owners[count] = 1
                grads[tensor.slot] = count
                release(old)
                release(key)

        for op in reversed(tape.ops):
            out = op.out
            if not out.grad:
                continue
            grad = grads.pop(out.slot, None)
            if grad is None and op is tape.ops[-1]:
                count += 1
                grad = count
                events.append((grad, out.bytes))
                owners[grad] = 1
            if grad is not None:
                if op.matmul and not multiplied:
                    multiplied = True
                    events.append(_MARK)
                work = [(_WORK + number, size) for number, size in enumerate(op.back)]
                events += work
                made: List[Tuple[Tensor, int]] = []
                for tensor in op.ins:
                    if not tensor.grad:
                        continue
                    if op.alias and tensor.elements == out.elements:
                        owners[grad] += 1
                        made.append((tensor, grad))
                        continue
                    count += 1
                    owners[count] = 1
                    made.append((tensor, count))
                    events.append((count, tensor.bytes))
                for index in op.params:
                    events.append((_GRADS + index, tape.params[index]))
                events += [(key, FREE) for key, _ in work]
                release(grad)
            for store in op.saved:
                savers[store] -= 1
                if not savers[store]:
                    events.append((store, FREE))
            for store in op.kept:
                events.append((store, FREE))
            if grad is not None:
                for tensor, key in made:
                    accumulate(tensor, key)
        # Gradients of what no operation consumed further (a branch whose output was not used).
        for slot in list(grads):
            release(grads.pop(slot))
