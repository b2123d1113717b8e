"""Walk through the modules of a summary in the order of execution and record what PyTorch would do.

The summary shows modules and shapes, not the code between them. What happens between two rows is inferred
from the shapes: a row that needs the previous row's result gets it; another shape is an earlier
tensor (a branch), several tensors together (a concatenation), the same numbers in another shape (a
view), or something new (a functional operation that has no row).
"""

from __future__ import annotations

from math import prod
from typing import Dict, List, Optional, Sequence, Set, Tuple

from slurm_gpumem.estimators.allocator.tape import Tape, Tensor
from slurm_gpumem.estimators.structural.layers.class_names import drops, has_decoder, keeps_cache, named
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.types import ModelSummary, Shape

_LOW = {"amp-fp16": "fp16", "amp-bf16": "bf16", "fp16": "fp16", "bf16": "bf16"}


class Scope:
    """A container during the walk: its input, and its children's results that nothing has used yet."""

    __slots__ = ("entry", "half", "kind", "post_norm", "scales", "unused")

    def __init__(self, kind: str, entry: Tensor) -> None:
        self.kind = kind
        self.entry = entry
        self.unused: Dict[int, Tensor] = {}
        self.half: Optional[Tensor] = None
        """One half of its input, which will gate the other."""
        self.scales = 0
        """Learned scales of branches that have not been used yet."""
        self.post_norm = False
        """Whether its last layer normalizes the sum of input and branch."""


class Walk:
    """The state of the walk: the tape, the current tensor, and where to look for others."""

    def __init__(self, summary: ModelSummary, job: TrainingJob) -> None:
        self.summary = summary
        self.job = job
        self.tape = Tape()
        self.amp = job.amp
        self.wide = job.weight_bytes
        """Bytes of a weight, and of what autocast leaves in full precision."""
        self.low = job.activation_bytes
        """Bytes of the results of matrix products and convolutions."""
        self.dtype = _LOW.get(job.precision, "fp32")
        """The type in which matrix products and convolutions compute."""
        self.cur: Tensor = self.tape.new((), 1, self.wide, grad=False)
        self.sent: Shape = ()
        """The shape of the batch."""
        self.scopes: List[Scope] = []
        self.recent: Dict[Shape, Tensor] = {}
        """The last tensor made of each shape."""
        self.stream: Optional[Tensor] = None
        """The residual stream of a transformer: what its last normalization took or made."""
        self.activated: Set[int] = set()
        """Slots of activations' results."""
        self.halves: Set[int] = set()
        """Slots of views of one half."""
        self.sources: Dict[int, Tensor] = {}
        """By the gradient of a module's result: what the module took."""
        self.head = 64
        """Width of an attention head; the common one unless a row shows it."""
        self.rotary = False
        """Whether queries and keys are rotated by their position."""
        self.caches = keeps_cache(summary.name) and not job.checkpointing
        """Whether attention keeps keys and values for generation (transformers' decoders do by default)."""
        self.caches_decoder = has_decoder(summary.name) and not job.checkpointing
        self.uses_conv = False
        self.uses_matmul = False
        self.assumptions: Dict[str, None] = {}
        self.has_guesses = False
        """Whether blocks had to be filled with layers that the summary does not show."""
        self.made_up = 0
        """Bytes of tensors that no row makes: functions between the rows that we cannot see."""
        self.tied = 0
        """Parameters of an embedding whose weights several modules use; 0: none."""
        self.ties_head = False
        """Whether the output layer uses it (and not only a second embedding)."""
        self.tied_index: Tuple[int, ...] = ()
        self._unregistered = summary.total_params or sum(row.params for row in summary.layers)
        self._counts: Dict[Shape, int] = {}

    # Sizes

    def count(self, shape: Shape) -> int:
        """Numbers in a tensor of this shape at the job's batch size."""
        found = self._counts.get(shape)
        if found is None:
            found = self._counts[shape] = self.summary.elements(shape, self.job.batch_size)
        return found

    def assume(self, sentence: str) -> None:
        """Note an assumption that the summary does not confirm."""
        self.assumptions[sentence] = None

    # Making tensors

    def make(self, shape: Shape, width: int, *, grad: bool = True) -> Tensor:
        """A new tensor; the caller records the operation that makes it."""
        return self.tape.new(shape, self.count(shape), width, grad=grad)

    def give(self, out: Tensor) -> Tensor:
        """Make `out` the current tensor, for others to find."""
        self.cur = out
        self.recent[out.shape] = out
        if self.scopes:
            self.scopes[-1].unused[out.grad_id] = out
        return out

    def take(self, tensor: Tensor) -> Tensor:
        """Note that an operation consumes `tensor`."""
        for scope in reversed(self.scopes):
            if scope.unused.pop(tensor.grad_id, None) is not None:
                break
        return tensor

    def param(self, count: int, *, trainable: bool = True, bias: int = 0) -> Tuple[int, ...]:
        """Register parameters of a row; the indices of those that get gradients.

        Those of its `bias` are a separate tensor: a weight of 4 MiB fills segments in which a few more bytes
        would leave gaps.
        """
        # The totals decide: a module that the rows show twice is still one.
        count = min(count, self._unregistered)
        if count <= 0:
            return ()
        self._unregistered -= count
        sizes = [count - bias, bias] if 0 < bias < count else [count]
        if trainable:
            return tuple(self.tape.param(size * self.wide) for size in sizes)
        for size in sizes:
            self.tape.buffer(size * self.wide)
        return ()

    def forget(self, count: int) -> None:
        """Note that the totals count this many parameters twice."""
        if self._unregistered >= 2 * count:
            self._unregistered -= count

    def param_rest(self) -> None:
        """Register what the totals count and no row showed."""
        self.param(self._unregistered)

    def buffers(self, size: int) -> None:
        """Register buffers, in bytes."""
        self.tape.buffer(size)

    # Precision

    def lowered(self, tensor: Tensor) -> Tensor:
        """The tensor as autocast passes it to a matrix product: a half-precision copy if it is wider."""
        return self._cast(tensor, self.low) if self.amp and tensor.width > self.low else tensor

    def widened(self, tensor: Tensor) -> Tensor:
        """The tensor as autocast passes it to an operation that stays in fp32."""
        return self._cast(tensor, self.wide) if self.amp and tensor.width < self.wide else tensor

    def _cast(self, tensor: Tensor, width: int) -> Tensor:
        out = self.tape.new(tensor.shape, tensor.elements, width, grad=tensor.grad)
        return self.tape.op((tensor,), out)

    def weight(self, params: Tuple[int, ...], count: int) -> Tuple[Sequence[Tensor], Tuple[int, ...]]:
        """A weight as a matrix product uses it: (tensors to save, parameters whose gradient it makes).

        Under autocast a half-precision copy is made, cached until the forward pass ends and saved.
        """
        if not self.amp:
            return (), params
        copy = self.tape.new((), count, self.low, grad=bool(params))
        self.tape.op((), copy, params=params)
        self.tape.cached.append(copy.store)
        return (copy,), ()

    # Finding inputs

    def find(self, shape: Optional[Shape]) -> Tensor:
        """The tensor of this shape that the next operation takes."""
        cur = self.cur
        if shape is None or cur.shape == shape:
            waiting = self.waiting(cur)
            if waiting is not None:
                cur = self.combine(cur, waiting)
            return self.take(cur)
        found = None if self._is_mean(shape) else self._existing(shape)
        if found is None:
            found = self._derived(shape)
        return self.take(found)

    def _is_mean(self, shape: Shape) -> bool:
        """Whether `shape` has one number per channel of the current image: its mean, not an older one."""
        cur = self.cur.shape
        if len(cur) != 4 or prod(cur[2:]) <= 1 or not self.scopes or not named("gate", self.scopes[-1].kind):
            return False
        return shape == (*cur[:2], 1, 1)

    def waiting(self, cur: Tensor) -> Optional[Tensor]:
        """Another tensor of this shape that the current container made and nothing has used."""
        if not self.scopes:
            return None
        scope = self.scopes[-1]
        if cur.grad_id not in scope.unused or len(scope.unused) < 2:
            return None
        for grad_id, tensor in reversed(scope.unused.items()):
            if grad_id != cur.grad_id and tensor.shape == cur.shape and tensor.store != cur.store:
                return tensor
        return None

    def combine(self, cur: Tensor, other: Tensor) -> Tensor:
        """Two parallel results: an activation gates the other, anything else is added."""
        if cur.grad_id in self.activated or other.grad_id in self.activated:
            return self.multiply(cur, other)
        return self.add(cur, other)

    def _existing(self, shape: Shape) -> Optional[Tensor]:
        if self.holds(shape) and self.cur.grad_id in self.scopes[-1].unused:
            # The latest result in another shape: not the container's input, although that has the shape.
            return self.tape.view(self.take(self.cur), shape)
        if self.scopes:
            scope = self.scopes[-1]
            if scope.entry.shape == shape:
                return scope.entry
            for tensor in reversed(scope.unused.values()):
                if tensor.shape == shape:
                    return tensor
        # The same numbers in another shape, before anything older.
        if prod(shape[1:]) == prod(self.cur.shape[1:]) and self.count(shape) == self.cur.elements:
            return self.tape.view(self.cur, shape)
        for scope in reversed(self.scopes):
            if scope.entry.shape == shape:
                return scope.entry
        if shape in self.recent:
            return self.recent[shape]
        if self.count(shape) == self.cur.elements:
            return self.tape.view(self.cur, shape)
        if self.scopes and self.count(shape) == self.scopes[-1].entry.elements:
            return self.tape.view(self.scopes[-1].entry, shape)
        return None

    def _derived(self, shape: Shape) -> Tensor:
        if self.is_half(shape):
            return self.half(shape)
        parts = self._parts_of(shape)
        sources = parts or [self.cur]
        # A tensor joined with parameters alone (class tokens) becomes as wide as they are.
        width = self.wide if parts == [self.cur] else max(tensor.width for tensor in sources)
        # Index tensors do not become activations.
        out = self.make(shape, width if width <= 4 else self.wide, grad=any(t.grad for t in sources))
        for tensor in sources:
            self.take(tensor)
        self.tape.op(tuple(sources), out)
        self.recent[shape] = out
        if not parts:
            self.made_up += out.bytes
        return out

    def joined(self, shape: Shape) -> Optional[Tensor]:
        """The result of a container's last layer joined with other results, as one tensor of `shape`."""
        cur = self.cur
        if (
            not self.scopes
            or cur.grad_id == self.scopes[-1].entry.grad_id
            or cur.elements >= self.count(shape)
        ):
            return None
        return self.take(self._derived(shape)) if len(self._parts_of(shape)) > 1 else None

    def half(self, shape: Shape) -> Tensor:
        """A part of the channels as a view: the whole stays alive as long as the part is needed."""
        part = self.tape.part(self.cur, shape, self.count(shape))
        self.recent[shape] = part
        self.halves.add(part.grad_id)
        return self.tape.op((self.take(self.cur),), part)

    def holds(self, shape: Shape) -> bool:
        """Whether the latest result of this container has as many numbers as `shape`."""
        if not self.scopes or self.cur.grad_id == self.scopes[-1].entry.grad_id:
            return False
        return self.cur.shape != shape and self.cur.elements == self.count(shape)

    def is_half(self, shape: Optional[Shape]) -> bool:
        """Whether `shape` is one half of the current tensor's channels."""
        cur = self.cur.shape
        if shape is None or len(shape) != len(cur) or len(shape) < 3:
            return False
        channels = 2 * shape[1] == cur[1] and shape[2:] == cur[2:]
        return channels or (2 * shape[-1] == cur[-1] and shape[:-1] == cur[:-1])

    def _parts_of(self, shape: Shape) -> List[Tensor]:
        """The tensors that make `shape` when concatenated; empty if none do."""
        cur = self.cur
        for axis in (1, len(shape) - 1, 2):
            if axis >= len(shape) or len(cur.shape) != len(shape) or cur.shape[axis] >= shape[axis]:
                continue
            rest = shape[:axis] + shape[axis + 1 :]

            def fits(tensor: Tensor, axis: int = axis, rest: Shape = rest) -> bool:
                return (
                    len(tensor.shape) == len(shape) and tensor.shape[:axis] + tensor.shape[axis + 1 :] == rest
                )

            if not fits(cur):
                continue
            unused = [
                t
                for scope in self.scopes
                for t in scope.unused.values()
                if t.grad_id != cur.grad_id and fits(t)
            ]
            missing = shape[axis] - cur.shape[axis]
            # All unused results; the nearest unused results until they are enough; or one older tensor.
            if unused and sum(t.shape[axis] for t in unused) == missing:
                return [*unused, cur]
            chosen: List[Tensor] = []
            for tensor in reversed(unused):
                if tensor.shape[axis] <= missing:
                    chosen.append(tensor)
                    missing -= tensor.shape[axis]
                if not missing:
                    return [*chosen, cur]
            missing = shape[axis] - cur.shape[axis]
            other = self.recent.get((*shape[:axis], missing, *shape[axis + 1 :]))
            if other is not None:
                return [other, cur]
            if missing <= 4 and axis == 1:
                # Class and register tokens, which are parameters.
                return [cur]
        return []

    def drops(self) -> bool:
        """Whether a dropout here has p > 0, judging by the library of the surrounding classes."""
        return drops([scope.kind for scope in self.scopes])

    # Common operations

    def add(self, left: Tensor, right: Tensor, *, in_place: bool = False) -> Tensor:
        """A residual addition: saves nothing, passes its gradient to both."""
        self.take(left)
        self.take(right)
        if in_place and left.width >= right.width:
            out = self.tape.over(left)
        else:
            grad = left.grad or right.grad
            out = self.tape.new(left.shape, left.elements, max(left.width, right.width), grad=grad)
        return self.give(self.tape.op((left, right), out, alias=True))

    def multiply(self, big: Tensor, small: Tensor) -> Tensor:
        """A product: saves both factors."""
        self.take(big)
        self.take(small)
        out = self.tape.new(big.shape, big.elements, max(big.width, small.width), grad=big.grad or small.grad)
        # The gradient of one number for a whole channel is a product as large as the other factor, summed.
        passing = (0, out.bytes) if small.elements < big.elements else ()
        return self.give(self.tape.op((big, small), out, saved=(big, small), passing=passing))
