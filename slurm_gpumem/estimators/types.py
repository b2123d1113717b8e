"""The values that go into an estimate and come out of it."""

# Annotations are evaluated here: of those that are strings, each NamedTuple compiles every one.

import re
from typing import TYPE_CHECKING, Any, Dict, Iterable, Mapping, NamedTuple, Optional, Protocol, Tuple

from slurm_gpumem.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from slurm_gpumem.summaries.types import ModelSummary


# What each optimizer keeps per parameter, and what its step needs for a moment. PyTorch's own take the
# `foreach` implementation on CUDA: one operation over all parameters at once, whose results exist for all
# parameters at once.


class OptimizerRule(NamedTuple):
    """An optimizer's memory, in copies of the trainable parameters."""

    title: str
    """Its name as people write it."""
    states: int
    """Copies that stay from the first step on."""
    temporaries: int
    """Further copies at the peak of the foreach step."""
    note: str = ""
    by_pytorch: bool = True
    """Whether it is one of torch.optim's since 1.13, which follow its `foreach` default."""


OPTIMIZER_RULES: Dict[str, OptimizerRule] = {
    "adam": OptimizerRule("Adam", states=2, temporaries=1),
    "adamw": OptimizerRule("AdamW", states=2, temporaries=1),
    "sgd": OptimizerRule("SGD", states=0, temporaries=0),
    "sgd-momentum": OptimizerRule("SGD with momentum", states=1, temporaries=0),
    "rmsprop": OptimizerRule("RMSprop", states=1, temporaries=1, note="without momentum, not centered"),
    "adagrad": OptimizerRule("Adagrad", states=1, temporaries=2),
    "lion": OptimizerRule(
        "Lion", states=1, temporaries=1, note="not PyTorch's own; one state is kept", by_pytorch=False
    ),
    "adafactor": OptimizerRule(
        "Adafactor",
        states=0,
        temporaries=1,
        note="its factored states are too small to count",
        by_pytorch=False,
    ),
}


OPTIMIZERS = tuple(OPTIMIZER_RULES)
USUAL_OPTIMIZER = "adam"
PRECISIONS = ("fp32", "tf32", "amp-fp16", "amp-bf16", "bf16")
LOSSES = ("cross-entropy", "mse", "none")
INPUT_DTYPES = ("auto", "fp32", "fp16", "bf16", "int64", "uint8")
MODULE_LOADING = ("auto", "lazy", "eager")
CPU_BUILD = "+cpu"
"""How a PyTorch without CUDA ends its version; such a one traces, but runs no job on a GPU."""
RESERVE_MIB = 1024
"""GPU memory that is not handed out: the driver's own (616 MiB of an H200), MPS servers of 66 MiB each."""
MUCH_CUSTOM = 0.1
"""From this share on, the margin is that of a model whose code is not known."""


class _Training(NamedTuple):
    """The fields of TrainingJob: a NamedTuple itself cannot look at what it is given."""

    batch_size: int
    """Samples that one GPU works on at once: a micro-batch under accumulation, one rank's batch under DDP."""
    optimizer: str = USUAL_OPTIMIZER
    precision: str = "fp32"
    gpus: int = 1
    """GPUs of the job, one process on each, which train data parallel; the estimate is for one of them."""
    grad_accumulation: int = 1
    """Micro-batches per optimizer step; above 1 the gradients live through the forward passes."""
    checkpointing: bool = False
    """Activation checkpointing: blocks keep their input only and are computed again in the backward pass."""
    channels_last: bool = False
    """The model and its input are in channels_last (NHWC) memory format."""
    loss: str = "cross-entropy"
    """Loss over the last layer's output (LOSSES); cross-entropy keeps log-probabilities beside the logits."""
    input_dtype: str = "auto"
    """Element type of the batch (INPUT_DTYPES); auto: int64 into an embedding, else the precision's own."""
    torch: str = ""
    """Version of the job's PyTorch as it prints it ("2.6.0+cu124"); "" where it is not known."""
    module_loading: str = "auto"
    """How CUDA loads its modules (MODULE_LOADING); auto: as that version of PyTorch does by default."""
    alloc_conf: str = ""
    """PYTORCH_CUDA_ALLOC_CONF of the job; "" for PyTorch's defaults."""
    cublas_workspace: str = ""
    """CUBLAS_WORKSPACE_CONFIG of the job; "" for PyTorch's default."""


class TrainingJob(_Training):
    """How the model is trained: everything besides the model that decides its memory."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers take the fields' own signatures

        def __new__(cls, *args: Any, **fields: Any) -> "TrainingJob":
            job = super().__new__(cls, *args, **fields)
            job._check()
            return job

        @classmethod
        def _make(cls, values: Iterable[Any]) -> "TrainingJob":
            return cls(*values)  # `_replace` comes here: what it changes is checked too

    def _check(self) -> None:
        _at_least_one("batch size", self.batch_size)
        _at_least_one("number of GPUs", self.gpus)
        _at_least_one("gradient accumulation", self.grad_accumulation)
        _yes_or_no("checkpointing", self.checkpointing)
        _yes_or_no("channels_last", self.channels_last)
        _one_of("optimizer", self.optimizer, OPTIMIZERS)
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("loss", self.loss, LOSSES)
        _one_of("input dtype", self.input_dtype, INPUT_DTYPES)
        _one_of("module loading", self.module_loading, MODULE_LOADING)
        if self.torch and not re.match(r"\d+\.\d+", self.torch):
            raise UsageError(f"torch must be PyTorch's version, like 2.6 or 2.6.0+cu124, not {self.torch!r}")

    @property
    def optimizer_rule(self) -> OptimizerRule:
        """What the optimizer keeps and needs."""
        return OPTIMIZER_RULES[self.optimizer]

    @property
    def amp(self) -> bool:
        """Whether autocast is on: fp32 weights, half-precision activations."""
        return self.precision.startswith("amp-")

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight, and of its gradient and each optimizer state."""
        return 2 if self.precision == "bf16" else 4

    @property
    def activation_bytes(self) -> int:
        """Bytes of most activations' elements."""
        return 4 if self.precision in ("fp32", "tf32") else 2


def _at_least_one(what: str, value: int) -> None:
    # The API takes what its caller gives: "128" or 12.5 would fail far from here.
    if not isinstance(value, int):
        raise UsageError(f"{what} must be a whole number, not {value!r}")
    if value < 1:
        raise UsageError(f"{what} must be at least 1, not {value}")


def _yes_or_no(what: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{what} must be True or False, not {value!r}")


def _one_of(what: str, value: str, known: Tuple[str, ...]) -> None:
    if value not in known:
        raise UnknownNameError(what, value, list(known))


class Gpu(NamedTuple):
    """What an estimate must know of a GPU type; an entry of models/gpus.toml."""

    name: str
    memory_mib: int
    """As nvidia-smi prints it; on a cluster, what its shards stand for."""
    context_mib: int
    """CUDA context with cuDNN and cuBLAS loaded: what most training jobs take outside the allocator."""
    context_bare_mib: Optional[int] = None
    """... after the first tensor only,"""
    context_conv_mib: Optional[int] = None
    """... with convolutions but no matrix product,"""
    context_matmul_mib: Optional[int] = None
    """... with matrix products but no convolution. None: not known apart from `context_mib`."""
    cublas_workspace_bytes: int = 8_519_680
    """One cuBLAS workspace; PyTorch allocates one in the forward and one in the backward thread."""
    compute_capability: str = ""
    sms: Optional[int] = None
    bandwidth_gb_s: Optional[int] = None
    tflops: Tuple[float, ...] = ()
    """Peak rates: fp32, TF32 and half-precision matrix products; empty where nobody wrote them down."""
    clock_mhz: Optional[int] = None
    host_factor: float = 1.0
    """How much longer its node's CPU takes to start a kernel than that of the measured machine."""
    utilization_measured: bool = False
    """Whether jobs' utilization was measured on such a GPU."""
    entry: str = ""
    """The table's name for it; empty for a GPU that is in no table."""
    measured: bool = False
    """Whether the context was measured on such a GPU (or assumed from another's)."""
    calibrated: bool = False
    """Whether the site measured it itself."""
    workspaces_measured: bool = False
    """Whether cuDNN's workspaces were measured on such a GPU."""
    workspace_scale: Tuple[float, ...] = ()
    """What they take there as a multiple of the table's: fp32, fp16, bf16; empty where they are as in it."""
    context_margin_mib: int = 0
    """How much larger the context may be than is known here,"""
    context_spare_mib: int = 0
    """... and how much smaller."""
    source: str = ""
    reserve_mib: int = 0
    """Of `memory_mib`, what jobs do not get: see RESERVE_MIB. 0 where Slurm's shards leave it out already."""
    profile: str = ""
    """The MIG profile where it is an instance of a GPU, not a whole one: "1g.18gb"."""

    @property
    def usable_mib(self) -> int:
        """What the processes of jobs can have of it, their contexts included."""
        return max(1, self.memory_mib - self.reserve_mib)

    def in_shards(self, shard_mib: int) -> "Gpu":
        """The same, usable in whole shards only, as Slurm hands them out: the remainder is not used."""
        whole = self.usable_mib // shard_mib * shard_mib
        return self._replace(reserve_mib=self.memory_mib - whole) if self.reserve_mib and whole else self

    def context_for(self, *, conv: bool, matmul: bool) -> int:
        """MiB outside the allocator for a job with convolutions and/or matrix products."""
        if conv and matmul:
            known: Optional[int] = self.context_mib
        elif conv:
            known = self.context_conv_mib
        elif matmul:
            known = self.context_matmul_mib
        else:
            known = self.context_bare_mib
        return self.context_mib if known is None else known


WIDEST_INTERVAL = 60.0
"""Points of SM activity: with a wider interval a job may be nearly idle or nearly full."""


class Utilization(NamedTuple):
    """How hard a job drives its GPU when it is alone there, before it runs; percent and seconds."""

    sm_active: float
    """Percent of time and multiprocessors that have work (DCGM's SMACT)."""
    sm_occupancy: float
    """Percent of the warps that the multiprocessors could hold (SMOCC)."""
    dram_active: float
    """Percent of time that the memory interface moves data (DRAMA)."""
    step_seconds: float
    intervals: Mapping[str, Tuple[float, float]]
    """By the names above: (low, high) between which `coverage` of such jobs lie."""
    coverage: float
    launch_bound: bool
    """Whether the step waits for the CPU that starts its kernels more than for the GPU."""
    source: str
    """What it was predicted from: "summary" or "trace"; "remembered": earlier runs showed its SM activity;
    "assumed": nothing is known, and the site says what to take (sharing.unknown_activity)."""
    measured: bool
    """Whether runs on such a GPU stand behind it, or runs on another one scaled to it."""
    warnings: Tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the interval of SM activity says anything; reports say "unknown" where it does not."""
        low, high = self.intervals.get("sm_active", (self.sm_active, self.sm_active))
        return high - low <= WIDEST_INTERVAL


class CustomForward(NamedTuple):
    """What depends on custom code, which a summary cannot show: `forward` of classes that somebody wrote."""

    share: float
    """Of the outputs that the summary shows: what such classes get from their layers."""
    classes: Tuple[str, ...]
    """Those classes, the weightiest first; empty where every forward is known."""
    no_shapes: bool = False
    """Whether the summary shows no shapes either, so that the activations are a guess."""

    @property
    def is_much(self) -> bool:
        """Whether so much depends on it that the margin must be wider."""
        return self.share >= MUCH_CUSTOM

    @property
    def message(self) -> str:
        """One line for people; "" where nothing is unseen."""
        if self.no_shapes:
            return "the summary shows no shapes, so what the activations take cannot be known"
        if not self.classes:
            return ""
        return f"what {self.classes[0]}.forward does cannot be seen in a summary; `gpumem trace` can"


class Margin(NamedTuple):
    """What is known of the distance between an estimate's peak and its request."""

    coverage: Optional[float] = None
    """Share of such jobs for which the request is enough; models/fitted/margins.md has held-out jobs."""
    requests: Tuple[int, ...] = ()
    """What would be asked for at each of coverage.LEVELS; empty where the estimator knows one only."""
    group: str = ""
    """The group of jobs whose measured needs decide it (models/fitted/margins.json); "" where none does."""
    workspace_mib: int = 0
    """What cuDNN's workspaces would add if they were half as large again, where nobody measured them."""
    spare_mib: int = 0
    """How much smaller the peak may be: the context was taken from the larger of several environments."""
    wanted_mib: Optional[int] = None
    """The request that its coverage needs, where that is more than the GPU has; None otherwise."""
    custom_forward: Optional[CustomForward] = None
    """The code that the summary could not show, where the margin is wider because of it."""


NO_MARGIN = Margin()
"""Of an estimator that has one request only."""


class Estimate(NamedTuple):
    """A job's GPU memory before it runs, in MiB, and where every MiB goes."""

    peak_mib: int
    """Best single number for the process's GPU memory."""
    request_mib: int
    """What to reserve: an upper bound."""
    floor_mib: int
    """Allocated plus context: under this it cannot run."""
    parts: Mapping[str, int]
    """MiB by the parts' names (formats.comment.PART_NAMES); sums to peak_mib."""
    estimator: str
    gpu: str
    job: TrainingJob
    warnings: Tuple[str, ...] = ()
    assumptions: Tuple[str, ...] = ()
    margin: Margin = NO_MARGIN
    utilization: Optional[Utilization] = None
    """How hard the job drives the GPU; None where nothing is known of it ..."""
    no_utilization: str = ""
    """... and why, where the summary shows too little."""

    @property
    def sure_mib(self) -> int:
        """What the coverage needs, whether a GPU has it or not."""
        wanted = self.margin.wanted_mib
        return self.request_mib if wanted is None else wanted


class Estimator(Protocol):
    """What a module in this folder exports as `estimate`, to be listed in the registry."""

    def __call__(self, summary: "ModelSummary", job: TrainingJob, gpu: Gpu) -> Estimate: ...
