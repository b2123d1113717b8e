"""What one training step gives a GPU to do: its kernels, by kind, and the operations that start them.

A kernel is arithmetic, bytes and blocks of threads; equal ones are counted, not repeated. Nothing here
knows how fast a GPU is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, NamedTuple, Sequence, Tuple

from slurm_gpumem.estimators.allocator.tape import Op, Tape
from slurm_gpumem.estimators.structural.layers.class_names import family_of
from slurm_gpumem.estimators.types import TrainingJob

KINDS = (
    "gemm_fp32",
    "gemm_tf32",
    "gemm_half",
    "conv_tf32",
    "conv_half",
    "weight_tf32",
    "weight_half",
    "grouped_fp32",
    "grouped_half",
    "depthwise_fp32",
    "depthwise_fp16",
    "depthwise_bf16",
    "taps_fp32",
    "taps_fp16",
    "taps_bf16",
    "attention_fp32",
    "attention_half",
    "pointwise",
    "norm",
    "pool",
    "rnn_fp32",
    "rnn_half",
    "optimizer",
    "serial",
)
"""What kernels are alike in: how close to the GPU's peak rates they come. Weight: the gradient of a
convolution's weight, a small result of a long sum; taps: that of a depthwise one, a block for each number;
serial: few threads that go through many numbers, as in interpolations."""
_AT = {name: kind for kind, name in enumerate(KINDS)}
POINTWISE, NORM, POOL, OPTIMIZER = _AT["pointwise"], _AT["norm"], _AT["pool"], _AT["optimizer"]
SERIAL = _AT["serial"]
_POOLS = ("max_pool", "avg_pool")
RECURRENT = (_AT["rnn_fp32"], _AT["rnn_half"])
_TILE = 64
"""Rows and columns of the result that one block of a matrix product computes at least."""
POINTS = 512
"""Elements that one block of an elementwise kernel handles (128 threads of 4)."""
_SPLIT = 256
"""The least length of the parts when a product with few tiles is cut along its sum, too."""
_ENOUGH = 1024
"""Tiles that keep a large GPU busy; a product of fewer is cut."""
_MOST_SPLITS = 16
_FEW_CHANNELS, _FIRST_SPLITS = 4, 64
"""Images have so few channels that libraries cut the sum for a first layer's weight further."""
_EDGE, _DEPTH = 32, 16
"""The smallest tile of a product: rows and columns, and numbers that a step of its sum takes at once."""
_MOST_WASTE = 16.0
FOREACH_TENSORS = 30
"""Tensors that one launch of an optimizer's foreach operation takes, as its arguments have room for."""
_BACKWARD_ATTENTION = 2.5
"""Its backward computes the scores again: five products to the forward's two."""
_GATES = {"LSTM": 8, "GRU": 6, "RNN": 2}
"""Weights of a recurrent layer in squares of its width."""
_STARTED = ("products", "attention", "norms", "points", "casts")
_PRODUCT, _ATTENTION, _NORM, _POINT, _CAST = range(len(_STARTED))
_FORWARD = 1 / 3
"""The part of an operation's cost for the CPU that falls in the forward pass."""

Key = Tuple[int, int, int, int]
"""Kind, floating-point operations, bytes, blocks."""


def kind_named(name: str) -> int:
    """The number of a kind of KINDS."""
    return _AT[name]


class Host(NamedTuple):
    """What the CPU has to start in a step: operations with their backward, by what they cost it."""

    products: float
    attention: float
    norms: float
    points: float
    casts: float
    tensors: float
    """Parameter tensors that the optimizer and zero_grad go through."""
    passes: float
    """Foreach operations of the optimizer's step."""
    views: float = 0.0
    """Operators that start no kernel; only a trace knows them."""


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
    launches = max(1, -(-counter.tensors // FOREACH_TENSORS))
    each = parameters // launches
    # A pass reads two and writes one of: weight, gradient, states, temporaries.
    key = (OPTIMIZER, 0, 3 * each, max(1, each // job.weight_bytes // (4 * POINTS)))
    kernels[key] = kernels.get(key, 0) + passes * launches
    host = [
        _FORWARD * ahead * forwards + (1 - _FORWARD) * back * job.grad_accumulation
        for ahead, back in zip(counter.ahead, counter.back)
    ]
    started = Host(host[0], host[1], host[2], host[3], host[4], float(counter.tensors), float(passes))
    return StepWork(kernels, started, parameters)


def _optimizer_passes(job: TrainingJob) -> int:
    rule = job.optimizer_rule
    return 1 + 4 * rule.states + 2 * rule.temporaries + (2 if job.precision == "amp-fp16" else 0)


class _Counter:
    """Collects a tape's kernels."""

    def __init__(self, job: TrainingJob) -> None:
        self.forward: Dict[Key, int] = {}
        self.backward: Dict[Key, int] = {}
        self.ahead = [0] * len(_STARTED)
        self.back = [0] * len(_STARTED)
        """Operations by _STARTED, forward and backward."""
        self.tensors = 0
        self._amp = job.amp
        self._batch = job.batch_size
        half = job.activation_bytes == 2
        # Convolutions take TF32 unless told otherwise, matrix products only when told.
        self._gemm = _AT["gemm_half" if half else f"gemm_{job.precision}"]
        self._conv = _AT["conv_half" if half else "conv_tf32"]
        self._weight = _AT["weight_half" if half else "weight_tf32"]
        width = "half" if half else "fp32"
        self._attend, self._recur = _AT[f"attention_{width}"], _AT[f"rnn_{width}"]
        # Libraries have kernels for depthwise convolutions in one half precision and not in the other.
        exact = job.precision[-4:] if half else "fp32"
        self._depthwise, self._taps = _AT[f"depthwise_{exact}"], _AT[f"taps_{exact}"]
        self._grouped = _AT[f"grouped_{width}"]

    def add(self, op: Op) -> None:
        """One operation and its backward."""
        out = op.out
        family = family_of(op.label)
        if op.macs:
            attends = op.matmul and bool(op.back) and not op.params and family != "rnn"
            self._start(_ATTENTION if attends else _PRODUCT, out.grad)
            if family == "rnn":
                self._recurrent(op)
            elif attends:
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
        norm = "norm" in family and len(ins) == 1
        started = _NORM if norm else _POINT
        if self._amp and len(ins) == 1 and ins[0].elements == out.elements and ins[0].width != out.width:
            started, norm = _CAST, False
        elif not ins and self._amp and op.params:
            started = _CAST
            moved *= 3
        self._start(started, out.grad)
        kind = NORM if norm else POOL if family in _POOLS else POINTWISE
        if norm or family == "embedding":
            self.tensors += 2 if norm else 1
        # Reductions read more than they write.
        blocks = max(1, max(out.elements, *(tensor.elements for tensor in ins), 0) // POINTS)
        # Statistics first, then the result: what is normalized is read twice.
        if norm and len(out.shape) > 1 and family.startswith("batch_norm"):
            means = min(blocks, out.shape[1])  # a block for each channel
            _count(self.forward, (kind, 0, moved // 2, means))
            _count(self.forward, (kind, 0, moved, blocks))
            if out.grad:
                _count(self.backward, (kind, 0, moved, means))
                _count(self.backward, (kind, 0, moved + moved // 2, blocks))
            return
        _count(self.forward, (kind, 0, moved + moved // 2 if norm else moved, blocks))
        if out.grad:
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
        # Groups of one channel have an odd number of weights (3 x 3, 7 x 7); wider ones are even.
        single = grouped and reach % 2 == 1
        kind = self._grouped if grouped else self._conv if convolution else self._gemm
        moved = out.bytes + x.bytes + weight * out.width

        def kernel(high: int, wide: int, long: int) -> Key:
            if single:
                return self._depthwise, 2 * op.macs, moved, max(1, high * wide // POINTS)
            flops = 2 * op.macs if grouped else padded(2 * op.macs, high, wide, long)
            return kind, flops, moved, blocks_of(high, wide, long)

        _count(self.forward, kernel(rows, columns, reach))
        copies, passing = sum(op.work), op.passing
        if copies:
            _count(self.forward, (POINTWISE, 0, 2 * copies, max(1, copies // (4 * POINTS))))
        if not out.grad:
            return
        if x.grad:
            taken = max(1, inner if convolution else reach)
            _count(self.backward, kernel(max(1, x.elements // taken), taken, max(1, op.macs // x.elements)))
        if single:
            own = self._taps, 2 * op.macs, moved, weight
        elif convolution and not grouped:
            flops = padded(2 * op.macs, reach, columns, rows)
            own = self._weight, flops, moved, weight_blocks(reach, columns, rows, inner)
        else:
            own = kernel(reach, columns, rows)
        _count(self.backward, own)
        for copied in passing[: 2 if x.grad else 1]:
            if copied and convolution:
                _count(self.backward, (POINTWISE, 0, 2 * copied, max(1, copied // (4 * POINTS))))

    def _attention(self, op: Op) -> None:
        out = op.out
        flops = 2 * op.macs
        moved = out.bytes + sum(t.bytes for t in op.ins)
        blocks = max(1, out.elements // (64 * 128))  # a head's 128 queries each
        _count(self.forward, (self._attend, flops, moved, blocks))
        if out.grad:
            _count(self.backward, (self._attend, int(_BACKWARD_ATTENTION * flops), 2 * moved, blocks))

    def _recurrent(self, op: Op) -> None:
        """A chain of small products through time, each waiting for the one before it."""
        out = op.out
        width = _columns(out.shape, out.elements, convolution=False)
        steps = self._steps(out.shape, out.elements // width)
        params = op.macs // max(1, out.elements // width)
        layers = max(1, round(params / (_GATES.get(op.label, 2) * width * width)))
        count = steps * layers
        self.tensors += 4 * layers
        # Small products in small tiles, four to an ordinary one.
        rows = max(1, out.elements // (width * steps))
        blocks = 4 * blocks_of(rows, _GATES.get(op.label, 2) // 2 * width, width)
        key = (self._recur, 2 * op.macs // count, params // layers * out.width, blocks)
        _count(self.forward, key, count)
        if out.grad:
            _count(self.backward, key, 2 * count)

    def _steps(self, shape: Sequence[int], vectors: int) -> int:
        """How many steps in time: rows of a picture lie beside the batch, each a sequence of its own."""
        if len(shape) == 3 and shape[1] != self._batch and shape[0] % self._batch == 0:
            return max(1, shape[1])
        return max(1, vectors // self._batch)

    def _start(self, what: int, grad: bool) -> None:
        self.ahead[what] += 1
        self.back[what] += grad


def _count(into: Dict[Key, int], key: Key, times: int = 1) -> None:
    into[key] = into.get(key, 0) + times


def _columns(shape: Sequence[int], elements: int, convolution: bool) -> int:
    """The result's channels or features."""
    if not shape:
        return max(1, min(elements, 1024))
    size = shape[1] if convolution and len(shape) > 1 else shape[-1]
    return max(1, min(size, elements))


@lru_cache(maxsize=4096)
def blocks_of(rows: int, columns: int, reach: int, times: int = 1, most: int = _MOST_SPLITS) -> int:
    """Blocks of `times` equal products: tiles of the result, few of them cut along the sum, too."""
    tiles = -(-rows // _TILE) * -(-columns // _TILE) * times
    return tiles * max(1, min(most, reach // _SPLIT, _ENOUGH // tiles))


def weight_blocks(rows: int, columns: int, reach: int, channels: int, groups: int = 1) -> int:
    """Blocks of the product that is the gradient of a convolution's weight."""
    most = _FIRST_SPLITS if channels <= _FEW_CHANNELS else _MOST_SPLITS
    return blocks_of(rows, columns, reach, groups, most)


@lru_cache(maxsize=4096)
def padded(flops: int, rows: int, columns: int, reach: int) -> int:
    """A product's arithmetic with what tiles compute beyond its edges; narrow ones waste most of it."""
    waste = 1.0
    for size, tile in ((rows, _EDGE), (columns, _EDGE), (reach, _DEPTH)):
        waste *= -(-size // tile) * tile / size
    return int(flops * min(waste, _MOST_WASTE))


def launches(work: StepWork) -> int:
    """Kernels of the step."""
    return sum(work.kernels.values())
