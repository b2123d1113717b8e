"""A training step as its allocations: what our own summary holds beyond layers, without torch.

Sizes are polynomials of the batch size, so that one trace answers for every batch. A convolution's workspace
and a cuBLAS workspace depend on the GPU: the trace says where they are taken, the replay how large they are.
"""

# Annotations are evaluated here: of those that are strings, each NamedTuple compiles every one.

from typing import Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

PHASES = ("setup", "forward", "backward", "optimizer", "evaluate")
CATEGORIES = ("weights", "buffers", "gradients", "optimizer", "inputs", "activations", "workspace")
"""What an allocation is for. Workspaces are transient (cuDNN) or stay (cuBLAS)."""
KERNELS = (
    "gemm",
    "conv",
    "grouped",
    "depthwise",
    "attention",
    "norm",
    "pointwise",
    "cast",
    "view",
    "foreach",
    "rnn",
    "pool",
    "serial",
)
"""What operators of a step do; a view starts nothing and costs the CPU a little."""
SIZES: Mapping[str, int] = {"gemm": 4, "conv": 7, "grouped": 7, "depthwise": 7, "rnn": 4, "view": 0}
"""How many sizes such a kernel has; 2 where nothing is said."""
DTYPES = ("fp32", "fp16", "bf16")
CALLS = ("forward", "input", "weight")
"""Of a convolution: itself, and the gradients of its input and its weight."""
CALL_TYPES = ("fp32", "fp16", "bf16", "fp64")
WAYS = ("meta", "real")
"""How a model was traced: on meta tensors, or by a small real run on the CPU."""

PARAMETER = "parameter"
"""The operator of a block that holds a parameter of the model; the layer is the one that owns it."""
BUCKET = "ddp::bucket"
"""... of a buffer through which DDP reduces gradients."""
_FIRST_BUCKET = 1 << 20
BUCKET_CAP = 25 << 20
"""Bytes at which a bucket is closed, unless a script says otherwise (bucket_cap_mb)."""
NCCL = "nccl"
"""... of what NCCL takes outside of PyTorch's allocator. On an H200, PyTorch 2.11, a group of one process:"""
NCCL_FIRST_GROUP, NCCL_FURTHER_GROUP = 558 << 20, 388 << 20
"""bytes from the first collective on, and for each further group."""

Polynomial = Tuple[int, ...]
"""Bytes as coefficients of 1, batch, batch², ..."""


class Convolution(NamedTuple):
    """One cuDNN call: what its workspace depends on."""

    call: str
    """"forward", "input" (gradient of the input) or "weight" (gradient of the weight)."""
    dtype: str
    """"fp32", "fp16", "bf16"; fp32 means TF32, PyTorch's default for convolutions."""
    batch: Polynomial
    """Size of the input's first dimension."""
    channels: int
    outputs: int
    size: Tuple[int, ...]
    """Spatial sizes of the input (of the larger side of a transposed convolution)."""
    out_size: Tuple[int, ...]
    kernel: Tuple[int, ...]
    stride: Tuple[int, ...]
    padding: Tuple[int, ...]
    dilation: Tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    channels_last: bool = False


class Reduction(NamedTuple):
    """A sum across the numbers that lie side by side: large ones share their work through global memory."""

    inputs: Polynomial
    """Numbers that make one output."""
    outputs: Polynomial
    vector: int = 4
    """Outputs that one thread loads at once."""
    number: int = 4
    """Bytes of a partial result."""


class Site(NamedTuple):
    """A place in the step that allocates: which operator, in which layer, how much, for what."""

    bytes: Polynomial
    """Empty for a workspace, whose size is the GPU's."""
    operator: str
    module: str
    """Dotted name of the innermost layer; "" outside all of them."""
    category: str
    convolution: Optional[Convolution] = None
    """Set for a cuDNN workspace."""
    reduction: Optional[Reduction] = None
    """Set for the buffer of a sum."""
    stream: int = 0
    """The CUDA stream it is allocated for: 0, or one of the script's own, whose memory no other uses."""

    @property
    def is_cublas(self) -> bool:
        """Whether this is a cuBLAS workspace, whose size the GPU decides."""
        return (
            self.category == "workspace"
            and self.convolution is None
            and self.reduction is None
            and not self.bytes
        )

    def bytes_at(self, batch: int) -> int:
        """Bytes asked for at a batch size; 0 for a workspace."""
        return evaluate(self.bytes, batch)


class Kernel(NamedTuple):
    """Equal kernels of one training step: what they compute and move."""

    kind: str
    """One of KERNELS."""
    phase: str
    """"forward", "backward" or "optimizer"."""
    dtype: str
    """"fp32", "fp16" or "bf16"."""
    sizes: Tuple[Polynomial, ...]
    """Products: rows, columns, length of the sum, how many; convolutions also: weights of a channel, places
    of the larger side for each of the smaller, whether channels lie last. Attention: floating-point
    operations, rows of queries. Norms: numbers, means. Foreach: tensors, numbers. Rnn: operations, width of
    all gates, rows of the batch, width of the state. Serial: threads, numbers that each handles one after the
    other. Others: most numbers, numbers written."""
    bytes: Polynomial
    times: int = 1
    """How many of them."""


class Phase(NamedTuple):
    """Where a part of a step begins."""

    event: int
    """Index of its first event."""
    name: str
    """One of PHASES."""
    step: int
    """0 for the setup, then from 1."""


class TracedJob(NamedTuple):
    """What was traced."""

    batch: int
    optimizer: str = ""
    """Our name for it ("adam"), or its class where we have none; "" without training."""
    precision: str = "fp32"
    grad_accumulation: int = 1
    checkpointing: bool = False
    channels_last: bool = False
    evaluate: bool = False
    loss: str = ""
    torch: str = ""
    """Version that traced."""
    ranks: int = 1
    """Processes that train together, one of which was traced."""


class Trace(NamedTuple):
    """Every allocation and release of the first steps, in order."""

    job: TracedJob
    way: str
    """One of WAYS."""
    sites: Tuple[Site, ...]
    events: Tuple[int, ...]
    """n ≥ 0: allocate at site n, blocks being numbered from 0 in this order; n < 0: release the block that
    was allocated -n allocations ago."""
    phases: Tuple[Phase, ...]
    scalable: bool = True
    """Whether sizes are known as functions of the batch; otherwise only the traced batch counts."""
    uses_conv: bool = False
    """cuDNN gets loaded."""
    uses_matmul: bool = False
    """cuBLAS gets loaded."""
    benchmark: bool = False
    """cuDNN tries algorithms (`torch.backends.cudnn.benchmark`)."""
    finished: bool = False
    """The script came to its end, and nothing of it was skipped: it has no more batches than these."""
    unfinished: str = ""
    """How much of the script was seen, in words, where its end was not: "2 of 30 epochs"."""
    varied: bool = False
    """Its batches have many shapes, and not all were seen, or they come in another order each time."""
    remarks: Tuple[str, ...] = ()
    """What was assumed: unknown operators, values that were made up."""
    kernels: Tuple[Kernel, ...] = ()
    """What a step after the first computes; empty where nobody looked."""
    emptied: Tuple[int, ...] = ()
    """Events before which a script gives cached memory back (`torch.cuda.empty_cache`)."""

    def allocations(self) -> Iterator[Tuple[int, int, Optional[Site]]]:
        """(event, block, site) for an allocation, (event, block, None) for its release."""
        block = 0
        for index, value in enumerate(self.events):
            if value >= 0:
                yield index, block, self.sites[value]
                block += 1
            else:
                yield index, block + value, None

    def phase_of(self, event: int) -> Phase:
        """The part of the step that an event belongs to."""
        found = self.phases[0]
        for phase in self.phases:
            if phase.event > event:
                break
            found = phase
        return found


def evaluate(polynomial: Polynomial, batch: int) -> int:
    """The polynomial's value; never negative."""
    total = 0
    for coefficient in reversed(polynomial):
        total = total * batch + coefficient
    return max(total, 0)


def scale(trace: Trace, batch: int) -> Trace:
    """The same training at another batch size."""
    if batch == trace.job.batch:
        return trace
    return trace._replace(job=trace.job._replace(batch=batch))


def ddp_buckets(gradients: Sequence[int], cap: int) -> List[int]:
    """Bytes of DDP's buckets: filled from the last parameter on, closed when they have reached their size."""
    found: List[int] = []
    size, limit = 0, min(_FIRST_BUCKET, cap)
    for one in reversed(gradients):
        size += one
        if size >= limit:
            found.append(size)
            size, limit = 0, cap
    return [*found, size] if size else found
