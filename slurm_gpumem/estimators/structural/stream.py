"""The allocations and frees of one forward and one backward pass, from a tape."""

from __future__ import annotations

from typing import Dict, List, Optional, Set, Tuple

from slurm_gpumem.estimators.allocator.allocator import FREE
from slurm_gpumem.estimators.allocator.tape import DUST, Op, Tape, Tensor

WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, WORKSPACE = range(5)
# A key contains its category: each has a range of integers. Activations alternate between two halves of
# theirs, so that what survives a step (its output, its batch) does not collide with the next step's.
RANGE = 1 << 40
OTHER_STEP = 1 << 39
FLOWING = 1 << 38
"""From here on: gradients of activations."""
_AGAIN = 1 << 37
"""From here on: activations that a checkpointed block recomputes."""
GRADS = RANGE * GRADIENTS
STATES = RANGE * OPTIMIZER
BASE = RANGE * ACTIVATIONS
WORK = RANGE * WORKSPACE
_DUST = FLOWING - 1
_MARK = (-1, -2)
"""Marks the first matrix product in a stream."""
_RETURNED = (-1, -3)
"""Marks where the model has returned its output and the loss has not been computed yet."""

Events = List[Tuple[int, int]]


class Stream:
    """The events of one forward and one backward pass; the base of activations' keys is not yet added."""

    def __init__(self, tape: Tape) -> None:
        self.forward: Events = []
        self.backward: Events = []
        self.forward_matmul = -1
        """Position of the first matrix product in `forward`; -1: none."""
        self.backward_matmul = -1
        self.returned = -1
        """Position in `forward` where the loop gets the model's output; -1: together with the loss."""
        kept = {tensor.store: None for tensor in tape.survivors if tensor.bytes >= DUST}
        self.survivors = [store for store in kept if store not in tape.inputs]
        """Storages that the loop's variables keep after the backward pass."""
        self._tape = tape
        self._segments = _Segments(tape)
        self._checkpoints = bool(tape.segments)
        self._savers = [0] * len(tape.sizes)
        for index, op in enumerate(tape.ops):
            for store in op.saved:
                if not (self._checkpoints and self._segments.inside(index, store)):
                    self._savers[store] += 1
        for store in (*tape.inputs, *self.survivors, *self._segments.entries):
            # Counted as saved once more: a variable of the loop, or a checkpoint, keeps it.
            self._savers[store] += 1
        self._run_forward()
        self._run_backward()
        small: Set[int] = set()
        self.forward, marks = _without_dust(self.forward, small)
        self.forward_matmul, self.returned = marks[_MARK], marks[_RETURNED]
        self.backward, marks = _without_dust(self.backward, small)
        self.backward_matmul = marks[_MARK]
        # Gradients of small parameters, and of parameters that no operation used: keep allocations balanced.
        given = {key for key, size in self.backward if size != FREE and GRADS <= key < STATES}
        for index, size in enumerate(tape.params):
            if GRADS + index not in given:
                self.backward.append((GRADS + index, size))
        if tape.dust:
            self.forward.insert(0, (_DUST, tape.dust))
            self.forward_matmul += self.forward_matmul >= 0
            self.returned += self.returned >= 0
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
            if index == tape.returned:
                events.append(_RETURNED)
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
                events += [(WORK, size), (WORK, FREE)]
            if index in leaving:
                events += [(store, FREE) for store in leaving[index]]
            if op.kept and (not op.out.grad or self._segments.of(index) is not None):
                events += [(kept, FREE) for kept in op.kept]

    def _run_backward(self) -> None:
        tape, events, segments = self._tape, self.backward, self._segments
        flow = _Gradients(events)
        multiplied = False
        for index in range(len(tape.ops) - 1, -1, -1):
            op = tape.ops[index]
            out = op.out
            if self._checkpoints:
                segments.enter(index, events)
            if not out.grad:
                self._leave(index)
                continue
            grad = flow.take(out)
            if grad is None and index == len(tape.ops) - 1:
                grad = flow.make(out)
            made: List[Tuple[Tensor, int]] = []
            if grad is not None:
                if op.matmul and not multiplied:
                    multiplied = True
                    events.append(_MARK)
                made = self._differentiate(op, grad, flow)
            self._release(index, op)
            for tensor, key in made:
                flow.accumulate(tensor, key)
            self._leave(index)
        flow.drop_rest()

    def _differentiate(self, op: Op, grad: int, flow: _Gradients) -> List[Tuple[Tensor, int]]:
        """Make the gradients of an operation's inputs, with the workspaces that this needs."""
        events = self.backward
        work = [(WORK + number, size) for number, size in enumerate(op.back)]
        events += work
        made: List[Tuple[Tensor, int]] = []
        passing, spare = op.passing, WORK + len(work)
        for position, tensor in enumerate(op.ins):
            if not tensor.grad:
                continue
            if op.alias and tensor.elements == op.out.elements and tensor.width == op.out.width:
                made.append((tensor, flow.share(grad)))
                continue
            made.append((tensor, flow.make(tensor)))
            if passing and passing[position > 0]:
                events += [(spare, passing[position > 0]), (spare, FREE)]
        for index in op.params:
            events.append((GRADS + index, self._tape.params[index]))
        if passing and passing[1] and len(op.ins) == 1:
            events += [(spare, passing[1]), (spare, FREE)]
        events += [(key, FREE) for key, _ in work]
        flow.release(grad)
        return made

    def _release(self, index: int, op: Op) -> None:
        """Free what an operation saved and nothing else needs."""
        savers, events, segments = self._savers, self.backward, self._segments
        for store in op.saved:
            if self._checkpoints and segments.inside(index, store):
                segments.release(store, events)
                continue
            savers[store] -= 1
            if not savers[store]:
                events.append((store, FREE))
        if op.kept:
            again = _AGAIN if segments.of(index) is not None else 0
            events += [(store + again, FREE) for store in op.kept]

    def _leave(self, index: int) -> None:
        """Release the inputs of a checkpointed block once its first operation is differentiated."""
        if not self._checkpoints:
            return
        for store in self._segments.left(index):
            self._savers[store] -= 1
            if not self._savers[store]:
                self.backward.append((store, FREE))


class _Gradients:
    """Gradients of activations in the backward pass: who holds each, and where they are summed."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._owners: Dict[int, int] = {}
        self._by_grad_id: Dict[int, int] = {}
        self._count = FLOWING

    def make(self, tensor: Tensor) -> int:
        """A new gradient as large as `tensor`."""
        self._count += 1
        self._events.append((self._count, tensor.bytes))
        self._owners[self._count] = 1
        return self._count

    def share(self, key: int) -> int:
        """The same gradient for one more holder."""
        self._owners[key] += 1
        return key

    def take(self, tensor: Tensor) -> Optional[int]:
        """The summed gradient of `tensor`, which its operation now consumes."""
        return self._by_grad_id.pop(tensor.grad_id, None)

    def release(self, key: int) -> None:
        """One holder less."""
        self._owners[key] -= 1
        if not self._owners[key]:
            del self._owners[key]
            self._events.append((key, FREE))

    def accumulate(self, tensor: Tensor, key: int) -> None:
        """Autograd's sum over several consumers: in place if the first gradient has no other owner."""
        old = self._by_grad_id.get(tensor.grad_id)
        if old is None:
            self._by_grad_id[tensor.grad_id] = key
        elif old != key and self._owners[old] == 1:
            self.release(key)
        else:
            self._by_grad_id[tensor.grad_id] = self.make(tensor)
            self.release(old)
            self.release(key)

    def drop_rest(self) -> None:
        """Free gradients that no operation consumed further."""
        for key in self._by_grad_id.values():
            self.release(key)
        self._by_grad_id.clear()


class _Segments:
    """Checkpointed blocks: they save only their input and are recomputed in the backward pass."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._of: Dict[int, int] = {}
        self._maker: Dict[int, int] = {}
        self._again: Dict[int, int] = {}
        self._entries: Dict[int, List[int]] = {}
        self._pending = set(range(len(tape.segments)))
        if not tape.segments:
            return
        for number, (start, end) in enumerate(tape.segments):
            for index in range(start, end):
                self._of[index] = number
        for index, op in enumerate(tape.ops):
            for store in (op.out.store, *op.kept):
                self._maker.setdefault(store, index)
        for number, (start, end) in enumerate(tape.segments):
            taken: Dict[int, None] = {}
            for index in range(start, end):
                op = tape.ops[index]
                taken.update((t.store, None) for t in op.ins if not self.inside(index, t.store))
                for store in op.saved:
                    if self.inside(index, store):
                        self._again[store] = self._again.get(store, 0) + 1
            self._entries[number] = list(taken)

    @property
    def entries(self) -> List[int]:
        """The blocks' inputs from outside, once for each."""
        return [store for stores in self._entries.values() for store in stores]

    def of(self, index: int) -> Optional[int]:
        """The block an operation belongs to."""
        return self._of.get(index)

    def inside(self, index: int, store: int) -> bool:
        """Whether the operation's own block made this storage."""
        if not self._of:
            return False
        number = self._of.get(index)
        return number is not None and self._of.get(self._maker.get(store, -1)) == number

    def enter(self, index: int, events: Events) -> None:
        """Recompute the block when the backward pass reaches it."""
        number = self._of.get(index)
        if number is None or number not in self._pending:
            return
        self._pending.discard(number)
        start, end = self._tape.segments[number]
        ops, sizes = self._tape.ops, self._tape.sizes
        last: Dict[int, int] = {}
        for position in range(start, end):
            for store in (ops[position].out.store, *(tensor.store for tensor in ops[position].ins)):
                if self.inside(position, store) and store not in self._again:
                    last[store] = position
        made: Set[int] = set()
        for position in range(start, end):
            op = ops[position]
            for store in (op.out.store, *op.kept):
                if self.inside(position, store) and store not in made:
                    made.add(store)
                    events.append((store + _AGAIN, sizes[store]))
            for size in op.work:
                events += [(WORK, size), (WORK, FREE)]
            events += [(store + _AGAIN, FREE) for store in made if last.get(store) == position]
            if not op.out.grad:
                events += [(store + _AGAIN, FREE) for store in op.kept]

    def release(self, store: int, events: Events) -> None:
        """One operation less that needs a recomputed storage."""
        self._again[store] -= 1
        if not self._again[store]:
            events.append((store + _AGAIN, FREE))

    def left(self, index: int) -> List[int]:
        """A block's inputs, when its first operation was the last to be differentiated."""
        number = self._of.get(index)
        if number is None or self._tape.segments[number][0] != index:
            return []
        return self._entries[number]


def _without_dust(events: Events, small: Set[int]) -> Tuple[Events, Dict[Tuple[int, int], int]]:
    """The events worth following, and the positions of the marks among them."""
    kept: Events = []
    marks = {_MARK: -1, _RETURNED: -1}
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
            marks[event] = len(kept)
    return kept, marks
