"""How libraries report that GPU memory ran out, and what resembles it: one row each.

Every row has a sample `tests/recovery/logs/KIND/NAME*.txt`. Rows are tried in order and the first one that
matches a line counts, so what only resembles an error comes first.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple, Optional, Tuple

from slurm_gpumem.formats import verdicts


class Kind(Enum):
    """What a line says about how a run ended; one whose value is a verdict's name leads to that verdict."""

    OOM = verdicts.OOM
    """GPU memory ran out."""
    MAYBE = "maybe"
    """Libraries say this when GPU memory ran out, and for other reasons: a measurement must decide."""
    NEIGHBOUR = verdicts.NEIGHBOUR
    """The MPS server ended this client; the job itself did nothing wrong."""
    FAULT = "fault"
    """A GPU fault that MPS hands to all of a user's clients: its own or a neighbour's."""
    HOST = verdicts.HOST
    """Host memory ran out, which more GPU memory does not fix."""
    OTHER = "other"
    """Another reason."""
    CONSEQUENCE = "consequence"
    """Comes after whatever really happened; says nothing itself."""
    PROGRESS = "progress"
    """The job went on computing: what stood before was not its end."""


class Pattern(NamedTuple):
    """How one library reports it."""

    name: str
    kind: Kind
    regex: re.Pattern[str]


def _pattern(name: str, kind: Kind, regex: str) -> Pattern:
    return Pattern(name, kind, re.compile(regex))


PATTERNS: Tuple[Pattern, ...] = (
    # -- resembles it, and is not ------------------------------------------------------------------
    _pattern("wandb", Kind.CONSEQUENCE, r"^wandb:"),
    _pattern("tf-no-failure", Kind.CONSEQUENCE, r"The caller indicates that this is not a failure"),
    _pattern("tf-hint", Kind.CONSEQUENCE, r"report_tensor_allocations_upon_oom|RunOptions"),
    _pattern("loader-shm", Kind.HOST, r"out of shared memory|insufficient shared memory|\(shm\)"),
    _pattern(
        "triton", Kind.OTHER, r"OutOfResources: out of resource: (?:shared memory|threads|tensor memory)"
    ),
    _pattern("launch", Kind.OTHER, r"too many resources requested for launch"),
    _pattern("grpc", Kind.OTHER, r"(?i)RESOURCE_EXHAUSTED.*(?:larger than max|quota|message size)"),
    _pattern("tf-cpu", Kind.HOST, r"OOM when allocating tensor.*(?:device:CPU|allocator (?:mkl)?cpu)"),
    _pattern("xla-host", Kind.HOST, r"(?i)failed to allocate.* (?:on host|pinned|host memory)|PINNED_HOST"),
    _pattern("ray-host", Kind.HOST, r"node running low on memory|ray\.exceptions\.OutOfMemoryError"),
    # -- PyTorch -------------------------------------------------------------------------------------
    _pattern("torch", Kind.OOM, r"(?:CUDA|HIP|XPU) out of memory\. +Tried to allocate"),
    _pattern("torch-named", Kind.OOM, r"(?:^|[\s.(])(?:torch\.(?:cuda\.)?)OutOfMemoryError\b"),
    _pattern("torch-short", Kind.OOM, r"Error: (?:CUDA|HIP) (?:error: )?out of memory"),
    _pattern("accelerate", Kind.OOM, r"No executable batch size found, reached zero"),
    _pattern(
        "vllm",
        Kind.OOM,
        r"No available memory for the cache blocks"
        r"|Free memory on device .* less than desired GPU",
    ),
    _pattern("bitsandbytes", Kind.OOM, r"Error out of memory at line \d+ in file"),
    # -- CUDA's libraries ----------------------------------------------------------------------------
    _pattern("cublas", Kind.OOM, r"CUBLAS_STATUS_ALLOC_FAILED"),
    _pattern("cudnn", Kind.OOM, r"CUDNN_STATUS_ALLOC_FAILED"),
    _pattern("cusolver", Kind.OOM, r"CUS(?:OLVER|PARSE)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED"),
    _pattern(
        "nccl",
        Kind.OOM,
        r"Failed to CUDA (?:calloc|malloc|host alloc)"
        r"|Cuda failure (?:2 )?'out of memory'",
    ),
    # -- TensorFlow, JAX, Paddle, MXNet --------------------------------------------------------------
    _pattern("tf-allocate", Kind.MAYBE, r"failed to allocate .* from device: CUDA_ERROR_OUT_OF_MEMORY"),
    _pattern("tf", Kind.OOM, r"OOM when allocating tensor"),
    _pattern(
        "xla",
        Kind.OOM,
        r"RESOURCE_EXHAUSTED: .*(?:[Oo]ut of memory"
        r"|[Ff]ailed to allocate|[Aa]llocat\w+ .*bytes)",
    ),
    _pattern("paddle", Kind.OOM, r"Out of memory error on GPU \d"),
    _pattern("mxnet", Kind.OOM, r"cudaMalloc retry failed: out of memory"),
    # -- CuPy, RAPIDS, Numba, PyCUDA, boosting -------------------------------------------------------
    _pattern("cupy", Kind.OOM, r"OutOfMemoryError: Out of memory allocating [\d,]+ bytes"),
    _pattern(
        "rmm",
        Kind.OOM,
        r"RMM failure at.*[Mm]aximum pool size exceeded"
        r"|std::bad_alloc: out_of_memory: CUDA",
    ),
    _pattern("pycuda", Kind.OOM, r"cuMem\w*Alloc\w* failed: out of memory"),
    _pattern("lightgbm", Kind.OOM, r"\[(?:CUDA|Fatal)\] +\[?(?:CUDA\] )?out of memory"),
    # -- raw CUDA ------------------------------------------------------------------------------------
    _pattern(
        "cuda-code",
        Kind.OOM,
        r"(?i)\b(?:cuda|hip)\b.{0,120}?\b(?:error|code)[ =:]*\(?2\b"
        r".{0,80}(?:out of memory|MemoryAllocation)",
    ),
    _pattern(
        "cuda-name",
        Kind.OOM,
        r"\b(?:cuda|hip)Error(?:MemoryAllocation"
        r"|OutOfMemory)\b|\bCUDA_ERROR_OUT_OF_MEMORY\b",
    ),
    _pattern("cuda-malloc", Kind.OOM, r"(?i)\b(?:cuda|hip)(?:Malloc|MemAlloc)\w*\b.{0,120}\bout of memory"),
    _pattern("cuda-plain", Kind.OOM, r"(?i)\bCUDA (?:runtime |driver |API )*error\b.{0,160}: *out of memory"),
    _pattern("device", Kind.OOM, r"Out of (?:GPU memory trying to allocate|memory on device\. To view)"),
    # -- reported for this reason and others ---------------------------------------------------------
    _pattern("mention", Kind.MAYBE, r"(?i)(?:CUDA|GPU)\W+out of memory|out of GPU memory"),
    _pattern(
        "not-initialized", Kind.MAYBE, r"CU(?:BLAS|DNN|SOLVER)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)"
    ),
    _pattern(
        "no-engine",
        Kind.MAYBE,
        r"[Uu]nable to find (?:a valid cuDNN algorithm"
        r"|an engine to execute)|No algorithm worked",
    ),
    # -- MPS and GPU faults --------------------------------------------------------------------------
    _pattern(
        # The node itself takes a process from its server that is being ended: only company makes it a fault.
        "mps-client",
        Kind.FAULT,
        r"(?i)MPS client has been terminated"
        r"|ERROR_?MPS_?CLIENT_?TERMINATED|error 810\b",
    ),
    _pattern(
        "mps-server",
        Kind.NEIGHBOUR,
        r"(?i)MPS server is not ready"
        r"|ERROR_?MPS_?SERVER_?NOT_?READY|error 807\b",
    ),
    _pattern(
        "mps-rpc",
        Kind.NEIGHBOUR,
        r"(?i)between the MPS server and the MPS client failed"
        r"|ERROR_?MPS_?RPC_?FAILURE|error 806\b",
    ),
    _pattern(
        "mps-connection",
        Kind.NEIGHBOUR,
        r"(?i)MPS client failed to connect"
        r"|ERROR_?MPS_?CONNECTION_?FAILED|error 805\b",
    ),
    _pattern(
        "illegal",
        Kind.FAULT,
        r"(?i)illegal memory access|ERROR_?ILLEGAL_?ADDRESS"
        r"|unspecified launch failure|misaligned address",
    ),
    # -- host memory ---------------------------------------------------------------------------------
    _pattern(
        "slurm-killed",
        Kind.HOST,
        r"(?i)oom[-_ ]kill event|Some of (?:your"
        r"|the step) .*out-of-memory|OUT_OF_MEMORY$",
    ),
    _pattern("killed", Kind.HOST, r"^(?:\S+: line \d+: +\d+ )?Killed\b|Out of memory: Killed process"),
    _pattern("cpu-allocator", Kind.HOST, r"DefaultCPUAllocator: (?:can't allocate|not enough) memory"),
    _pattern(
        "host-alloc",
        Kind.HOST,
        r"\[Errno 12\]|Cannot allocate memory"
        r"|_ArrayMemoryError|^MemoryError\b|JavaScript heap",
    ),
    _pattern("bad-alloc", Kind.HOST, r"std::bad_alloc$|java\.lang\.OutOfMemoryError"),
    # -- after it ------------------------------------------------------------------------------------
    _pattern(
        "launcher",
        Kind.CONSEQUENCE,
        r"ChildFailedError|CalledProcessError"
        r"|Process(?:Exited|Raised)Exception",
    ),
    _pattern("pin-memory", Kind.CONSEQUENCE, r"Pin memory thread exited unexpectedly"),
    _pattern("pipes", Kind.CONSEQUENCE, r"^(?:BrokenPipe|ConnectionReset|ConnectionRefused|EOF)Error\b"),
    _pattern(
        # What other ranks say, and Slurm of them, when one has ended.
        "peers",
        Kind.CONSEQUENCE,
        r"[Cc]onnection (?:closed|reset) by (?:remote )?peer|DistBackendError|gloo/transport"
        r"|NCCL communicator was aborted|^srun: (?:error: \S+: tasks? [0-9,-]+: |Job step aborted)"
        r"|STEP \S+ ON \S+ CANCELLED AT \S+ \*",
    ),
    _pattern("exit", Kind.CONSEQUENCE, r"^SystemExit\b"),
    # -- other ends without a traceback --------------------------------------------------------------
    _pattern(
        "crash", Kind.OTHER, r"Segmentation fault|Bus error|Illegal instruction|Floating point exception"
    ),
    _pattern("assert", Kind.OTHER, r"device-side assert triggered|Assertion .* failed"),
    _pattern("usage", Kind.OTHER, r": error: (?:unrecognized arguments|the following arguments|argument )"),
    _pattern("shell", Kind.OTHER, r": (?:command not found|No such file or directory)$"),
    _pattern("time-limit", Kind.OTHER, r"CANCELLED AT .*DUE TO TIME LIMIT"),
    _pattern("disk", Kind.OTHER, r"No space left on device|Disk quota exceeded"),
    # -- still running -------------------------------------------------------------------------------
    _pattern(
        "survived",
        Kind.PROGRESS,
        r"(?i)(?<!try )(?<!consider )(?<!by )\b(?:retrying|skipp(?:ing|ed)|falling back|halving|reducing"
        r"|trying|using|switching|continuing)\b.{0,60}\b(?:batch|cpu|smaller|chunk|sample|step)",
    ),
    _pattern("bar", Kind.PROGRESS, r"\d+%\|.*\|\s*\d+/\d+ \["),
    _pattern(
        "training",
        Kind.PROGRESS,
        r"(?i)^(?!.*(?:fail|error|abort|memory)).*\b(?:epoch|step|iter(?:ation)?|batch)\b[\s:=#\[(]*\d+"
        r".*(?:\bloss\b|\bacc|\blr\b|\bppl\b|it/s|s/it|ms/|samples/s|\d/\d)",
    ),
)


def find_pattern(line: str) -> Optional[Pattern]:
    """The first row that matches the line."""
    return next((row for row in PATTERNS if row.regex.search(line)), None)
