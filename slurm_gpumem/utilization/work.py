"""What one training step gives a GPU to do: its kernels, by kind, and the operations that start them.

A kernel is arithmetic, bytes and blocks of threads; equal ones are counted, not repeated. Nothing here
knows how fast a GPU is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.memory.structural.kinds import family_of
from slurm_gpumem.memory.structural.tape import Op, Tape
from slurm_gpumem.memory.types import TrainingJob

KINDS = (
    "gemm_fp32",
    "gemm_tf32",
    "gemm_half",
    "conv_tf32",
    "conv_half",
    "grouped",
    "attention_fp32",
    "attention_half",
    "pointwise",
    "norm",
    "rnn",
    "optimizer",
)
"""What kernels are alike in: how close to the GPU's peak rates they come."""
_AT = {name: kind for kind, name in enumerate(KINDS)}
GROUPED, POINTWISE, NORM = _AT["grouped"], _AT["pointwise"], _AT["norm"]
RNN, OPTIMIZER = _AT["rnn"], _AT["optimizer"]
_TILE = 128
"""Rows and columns of the result that one block of a matrix product computes."""
_POINTS = 512
"""Elements that one block of an elementwise kernel handles (128 threads of 4)."""
_SPLIT = 2048
"""Length of a sum from which a product is cut along it, too."""
_MOST_SPLITS = 16
_FOREACH_TENSORS = 30
"""Tensors that one launch of an optimizer's foreach operation takes, as its arguments have room for."""
_BACKWARD_ATTENTION = 2.5
"""Its backward computes the scores again: five products to the forward's two."""
_CELL_KERNELS = 3
"""Launches for each time step and layer of cuDNN's recurrent networks, one direction through time."""

Key = Tuple[int, int, int, int]
"""Kind, floating-point operations, bytes, blocks."""


class Host(NamedTuple):
    """What the CPU has to start in a step."""

    forward: int
    casts: int
    backward: int
    tensors: int
    """Parameter tensors that the optimizer and zero_grad go through."""
    passes: int
    """Foreach operations of the optimizer's step."""


class StepWork(NamedTuple):
    """One step: how many kernels of each sort, and the CPU's part."""

    kernels: Dict[Key, int]
    host: Host
    parameter_bytes: int


def step_work(tape: Tape, job: TrainingJob) -> StepWork:
    """The work of one optimizer step of `job`, its micro-batches together."""
    counter = _Counter(job)
    for op in tape.ops:
        counter.add(op)
    parameters = sum(tape.params)
    forwards = job.grad_accumulation * (2 if job.checkpointing else 1)
    kernels: Dict[Key, int] = {}
    for key, count in counter.forward.items():
        kernels[key] = count * forwards
    for key, count in counter.backward.items():
        kernels[key] = kernels.get(key, 0) + count * job.grad_accumulation
    passes = _optimizer_passes(job)
    launches = max(1, -(-counter.tensors // _FOREACH_TENSORS))
    each = parameters // launches
    # A pass reads two and writes one of: weight, gradient, states, temporaries.
    key = (OPTIMIZER, 0, 3 * each, max(1, each // job.weight_bytes // (4 * _POINTS)))
    kernels[key] = kernels.get(key, 0) + passes * launches
    host = Host(
        forward=counter.operations * forwards,
        casts=counter.casts * forwards,
        backward=counter.backwards * job.grad_accumulation,
        tensors=counter.tensors,
        passes=passes,
    )
    return StepWork(kernels, host, parameters)


def _optimizer_passes(job: TrainingJob) -> int:
    rule = job.optimizer_rule
    return 1 + 4 * rule.states + 2 * rule.temporaries + (2 if job.precision == "amp-fp16" else 0)


class _Counter:
    """Collects a tape's kernels."""

    def __init__(self, job: TrainingJob) -> None:
        self.forward: Dict[Key, int] = {}
        self.backward: Dict[Key, int] = {}
        self.operations = 0
        self.casts = 0
        self.backwards = 0
        self.tensors = 0
        self._amp = job.amp
        half = job.activation_bytes == 2
        # Convolutions take TF32 unless told otherwise, matrix products only when told.
        self._gemm = _AT["gemm_half" if half else f"gemm_{job.precision}"]
        self._conv = _AT["conv_half" if half else "conv_tf32"]
        self._attend = _AT["attention_half" if half else "attention_fp32"]

    def add(self, op: Op) -> None:
        """One operation and its backward."""
        out = op.out
        family = family_of(op.label)
        if op.macs:
            self.operations += 1
            self.backwards += out.grad
            if family == "rnn":
                self._recurrent(op)
            elif op.matmul and op.back and not op.params:
                self._attention(op)
            else:
                self._product(op, convolution=family in ("conv", "conv_transpose") and not op.matmul)
            return
        ins = op.ins
        if ins and out.store == ins[0].store and out.elements < ins[0].elements:
            return  # a view
        moved = out.elements * out.width
        for tensor in ins:
            moved += tensor.elements * tensor.width
        if self._amp and len(ins) == 1 and ins[0].elements == out.elements and ins[0].width != out.width:
            self.casts += 1
        elif not ins and self._amp and op.params:
            self.casts += 1
            moved *= 3
        else:
            self.operations += 1
        norm = "norm" in family and len(ins) == 1
        kind = NORM if norm else POINTWISE
        if norm or family == "embedding":
            self.tensors += 2 if norm else 1
        blocks = max(1, out.elements // _POINTS)
        # Statistics first, then the result: what is normalized is read twice.
        _count(self.forward, (kind, 0, moved + moved // 2 if norm else moved, blocks))
        if out.grad:
            self.backwards += 1
            _count(self.backward, (kind, 0, 2 * moved if norm else moved + moved // 2, blocks))

    def _product(self, op: Op, *, convolution: bool) -> None:
        """A product or convolution: a kernel forward, one for the input's gradient, one for the weight's."""
        out, x = op.out, op.ins[0] if op.ins else op.out
        self.tensors += 1 if convolution else 2
        reach = max(1, op.macs // max(1, out.elements))
        columns = _columns(out.shape, out.elements, convolution)
        rows = max(1, out.elements // columns)
        inner = x.shape[1] if convolution and len(x.shape) > 1 else reach
        weight = columns * reach
        grouped = convolution and 0 < reach < inner
        kind = GROUPED if grouped else self._conv if convolution else self._gemm
        moved = out.bytes + x.bytes + weight * out.width
        flops = 2 * op.macs
        _count(self.forward, (kind, flops, moved, _blocks(rows, columns, reach, grouped)))
        copies, passing = sum(op.work), op.passing
        if copies:
            _count(self.forward, (POINTWISE, 0, 2 * copies, max(1, copies // (4 * _POINTS))))
        if not out.grad:
            return
        if x.grad:
            taken = max(1, x.elements // rows)
            _count(self.backward, (kind, flops, moved, _blocks(rows, taken, columns, grouped)))
        _count(self.backward, (kind, flops, moved, _blocks(reach, columns, rows, grouped)))
        for copied in passing[: 2 if x.grad else 1]:
            if copied:
                _count(self.backward, (POINTWISE, 0, 2 * copied, max(1, copied // (4 * _POINTS))))

    def _attention(self, op: Op) -> None:
        out = op.out
        flops = 2 * op.macs
        moved = out.bytes + sum(t.bytes for t in op.ins)
        blocks = max(1, out.elements // (64 * 128))  # a head's 128 queries each
        _count(self.forward, (self._attend, flops, moved, blocks))
        if out.grad:
            self.backwards += 2
            _count(self.backward, (self._attend, int(_BACKWARD_ATTENTION * flops), 2 * moved, blocks))

    def _recurrent(self, op: Op) -> None:
        """A chain of small products through time, each waiting for the one before it."""
        out = op.out
        steps = out.shape[1] if len(out.shape) > 2 and out.shape[1] > 0 else 32
        count = steps * _CELL_KERNELS
        self.tensors += 4
        moved = max(1, op.macs // max(1, out.elements // max(1, out.shape[-1]))) * out.width
        blocks = max(1, out.elements // steps // _POINTS)
        key = (RNN, 2 * op.macs // count, moved // _CELL_KERNELS, blocks)
        _count(self.forward, key, count)
        if out.grad:
            _count(self.backward, key, 2 * count)


def _count(into: Dict[Key, int], key: Key, times: int = 1) -> None:
    into[key] = into.get(key, 0) + times


def _columns(shape: Sequence[int], elements: int, convolution: bool) -> int:
    """The result's channels or features."""
    if not shape:
        return max(1, min(elements, 1024))
    size = shape[1] if convolution and len(shape) > 1 else shape[-1]
    return max(1, min(size, elements))


@lru_cache(maxsize=4096)
def _blocks(rows: int, columns: int, reach: int, grouped: bool) -> int:
    if grouped:
        return max(1, rows * columns // _POINTS)
    tiles = -(-rows // _TILE) * -(-columns // _TILE)
    return tiles * max(1, min(_MOST_SPLITS, reach // _SPLIT))


def total_flops(work: StepWork) -> int:
    """Floating-point operations of the step."""
    return sum(key[1] * count for key, count in work.kernels.items())


def launches(work: StepWork) -> int:
    """Kernels of the step."""
    return sum(work.kernels.values())


def kind_totals(work: StepWork) -> List[Tuple[int, int, int]]:
    """By kind: kernels, operations, bytes."""
    found = [[0, 0, 0] for _ in KINDS]
    for (kind, flops, moved, _), count in work.kernels.items():
        found[kind][0] += count
        found[kind][1] += flops * count
        found[kind][2] += moved * count
    return [(a, b, c) for a, b, c in found]


def work_of(step: Optional[object], job: TrainingJob) -> Optional[StepWork]:
    """The work behind an estimate; None where the estimator rebuilt no step."""
    tape = getattr(step, "tape", None)
    return step_work(tape, job) if isinstance(tape, Tape) else None
