"""The voices of GPU memory running out, and of what sounds like it: one row each.

Every row has a sample `tests/recovery/logs/KIND/NAME*.txt`. Rows are tried in order and the first
that is found in a line counts, so what only sounds like an error stands first.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple, Optional, Pattern, Tuple


class Kind(Enum):
    """What a line says of how a job ended."""

    OOM = "oom"
    """GPU memory ran out."""
    MAYBE = "maybe"
    """Libraries say this when GPU memory ran out, and for other reasons: a measurement must decide."""
    NEIGHBOUR = "neighbour"
    """The MPS server ended this client; the job itself did nothing wrong."""
    FAULT = "fault"
    """A GPU fault that MPS hands to all of a user's clients: its own or a neighbour's."""
    HOST = "host"
    """Host memory ran out, which more GPU memory does not mend."""
    OTHER = "other"
    """Another reason."""
    CONSEQUENCE = "consequence"
    """Comes after whatever really happened; says nothing itself."""
    PROGRESS = "progress"
    """The job went on computing: what stood before was not its end."""


class Voice(NamedTuple):
    """How one library says it."""

    name: str
    kind: Kind
    pattern: Pattern[str]


def _voice(name: str, kind: Kind, pattern: str) -> Voice:
    return Voice(name, kind, re.compile(pattern))


VOICES: Tuple[Voice, ...] = (
    # -- sounds like it, and is not ------------------------------------------------------------------
    _voice("wandb", Kind.CONSEQUENCE, r"^wandb:"),
    _voice("tf-no-failure", Kind.CONSEQUENCE, r"The caller indicates that this is not a failure"),
    _voice("tf-hint", Kind.CONSEQUENCE, r"report_tensor_allocations_upon_oom|RunOptions"),
    _voice("loader-shm", Kind.HOST, r"out of shared memory|insufficient shared memory|\(shm\)"),
    _voice("triton", Kind.OTHER, r"OutOfResources: out of resource: (?:shared memory|threads|tensor memory)"),
    _voice("launch", Kind.OTHER, r"too many resources requested for launch"),
    _voice("grpc", Kind.OTHER, r"(?i)RESOURCE_EXHAUSTED.*(?:larger than max|quota|message size)"),
    _voice("tf-cpu", Kind.HOST, r"OOM when allocating tensor.*(?:device:CPU|allocator (?:mkl)?cpu)"),
    _voice("xla-host", Kind.HOST, r"(?i)failed to allocate.* (?:on host|pinned|host memory)|PINNED_HOST"),
    _voice("ray-host", Kind.HOST, r"node running low on memory|ray\.exceptions\.OutOfMemoryError"),
    # -- PyTorch -------------------------------------------------------------------------------------
    _voice("torch", Kind.OOM, r"(?:CUDA|HIP|XPU) out of memory\. +Tried to allocate"),
    _voice("torch-named", Kind.OOM, r"(?:^|[\s.(])(?:torch\.(?:cuda\.)?)OutOfMemoryError\b"),
    _voice("torch-short", Kind.OOM, r"Error: (?:CUDA|HIP) (?:error: )?out of memory"),
    _voice("accelerate", Kind.OOM, r"No executable batch size found, reached zero"),
    _voice(
        "vllm",
        Kind.OOM,
        r"No available memory for the cache blocks"
        r"|Free memory on device .* less than desired GPU",
    ),
    _voice("bitsandbytes", Kind.OOM, r"Error out of memory at line \d+ in file"),
    # -- CUDA's libraries ----------------------------------------------------------------------------
    _voice("cublas", Kind.OOM, r"CUBLAS_STATUS_ALLOC_FAILED"),
    _voice("cudnn", Kind.OOM, r"CUDNN_STATUS_ALLOC_FAILED"),
    _voice("cusolver", Kind.OOM, r"CUS(?:OLVER|PARSE)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED"),
    _voice(
        "nccl",
        Kind.OOM,
        r"Failed to CUDA (?:calloc|malloc|host alloc)"
        r"|Cuda failure (?:2 )?'out of memory'",
    ),
    # -- TensorFlow, JAX, Paddle, MXNet --------------------------------------------------------------
    _voice("tf-allocate", Kind.MAYBE, r"failed to allocate .* from device: CUDA_ERROR_OUT_OF_MEMORY"),
    _voice("tf", Kind.OOM, r"OOM when allocating tensor"),
    _voice(
        "xla",
        Kind.OOM,
        r"RESOURCE_EXHAUSTED: .*(?:[Oo]ut of memory"
        r"|[Ff]ailed to allocate|[Aa]llocat\w+ .*bytes)",
    ),
    _voice("paddle", Kind.OOM, r"Out of memory error on GPU \d"),
    _voice("mxnet", Kind.OOM, r"cudaMalloc retry failed: out of memory"),
    # -- CuPy, RAPIDS, Numba, PyCUDA, boosting -------------------------------------------------------
    _voice("cupy", Kind.OOM, r"OutOfMemoryError: Out of memory allocating [\d,]+ bytes"),
    _voice(
        "rmm",
        Kind.OOM,
        r"RMM failure at.*[Mm]aximum pool size exceeded"
        r"|std::bad_alloc: out_of_memory: CUDA",
    ),
    _voice("pycuda", Kind.OOM, r"cuMem\w*Alloc\w* failed: out of memory"),
    _voice("lightgbm", Kind.OOM, r"\[(?:CUDA|Fatal)\] +\[?(?:CUDA\] )?out of memory"),
    # -- raw CUDA ------------------------------------------------------------------------------------
    _voice(
        "cuda-code",
        Kind.OOM,
        r"(?i)\b(?:cuda|hip)\b.{0,120}?\b(?:error|code)[ =:]*\(?2\b"
        r".{0,80}(?:out of memory|MemoryAllocation)",
    ),
    _voice(
        "cuda-name",
        Kind.OOM,
        r"\b(?:cuda|hip)Error(?:MemoryAllocation"
        r"|OutOfMemory)\b|\bCUDA_ERROR_OUT_OF_MEMORY\b",
    ),
    _voice("cuda-malloc", Kind.OOM, r"(?i)\b(?:cuda|hip)(?:Malloc|MemAlloc)\w*\b.{0,120}\bout of memory"),
    _voice("cuda-plain", Kind.OOM, r"(?i)\bCUDA (?:runtime |driver |API )*error\b.{0,160}: *out of memory"),
    _voice("device", Kind.OOM, r"Out of (?:GPU memory trying to allocate|memory on device\. To view)"),
    # -- said for this reason and for others ---------------------------------------------------------
    _voice("mention", Kind.MAYBE, r"(?i)(?:CUDA|GPU)\W+out of memory|out of GPU memory"),
    _voice("not-initialized", Kind.MAYBE, r"CU(?:BLAS|DNN|SOLVER)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR)"),
    _voice(
        "no-engine",
        Kind.MAYBE,
        r"[Uu]nable to find (?:a valid cuDNN algorithm"
        r"|an engine to execute)|No algorithm worked",
    ),
    # -- MPS and GPU faults --------------------------------------------------------------------------
    _voice(
        "mps-client",
        Kind.NEIGHBOUR,
        r"(?i)MPS client has been terminated"
        r"|ERROR_?MPS_?CLIENT_?TERMINATED|error 810\b",
    ),
    _voice(
        "mps-server",
        Kind.NEIGHBOUR,
        r"(?i)MPS server is not ready"
        r"|ERROR_?MPS_?SERVER_?NOT_?READY|error 807\b",
    ),
    _voice(
        "mps-rpc",
        Kind.NEIGHBOUR,
        r"(?i)between the MPS server and the MPS client failed"
        r"|ERROR_?MPS_?RPC_?FAILURE|error 806\b",
    ),
    _voice(
        "mps-connection",
        Kind.NEIGHBOUR,
        r"(?i)MPS client failed to connect"
        r"|ERROR_?MPS_?CONNECTION_?FAILED|error 805\b",
    ),
    _voice(
        "illegal",
        Kind.FAULT,
        r"(?i)illegal memory access|ERROR_?ILLEGAL_?ADDRESS"
        r"|unspecified launch failure|misaligned address",
    ),
    # -- host memory ---------------------------------------------------------------------------------
    _voice(
        "slurm-killed",
        Kind.HOST,
        r"(?i)oom[-_ ]kill event|Some of (?:your"
        r"|the step) .*out-of-memory|OUT_OF_MEMORY$",
    ),
    _voice("killed", Kind.HOST, r"^(?:\S+: line \d+: +\d+ )?Killed\b|Out of memory: Killed process"),
    _voice("cpu-allocator", Kind.HOST, r"DefaultCPUAllocator: (?:can't allocate|not enough) memory"),
    _voice(
        "host-alloc",
        Kind.HOST,
        r"\[Errno 12\]|Cannot allocate memory"
        r"|_ArrayMemoryError|^MemoryError\b|JavaScript heap",
    ),
    _voice("bad-alloc", Kind.HOST, r"std::bad_alloc$|java\.lang\.OutOfMemoryError"),
    # -- after it ------------------------------------------------------------------------------------
    _voice(
        "launcher",
        Kind.CONSEQUENCE,
        r"ChildFailedError|CalledProcessError"
        r"|Process(?:Exited|Raised)Exception",
    ),
    _voice("pin-memory", Kind.CONSEQUENCE, r"Pin memory thread exited unexpectedly"),
    _voice("pipes", Kind.CONSEQUENCE, r"^(?:BrokenPipe|ConnectionReset|ConnectionRefused|EOF)Error\b"),
    _voice("exit", Kind.CONSEQUENCE, r"^SystemExit\b"),
    # -- other ends without a traceback --------------------------------------------------------------
    _voice("crash", Kind.OTHER, r"Segmentation fault|Bus error|Illegal instruction|Floating point exception"),
    _voice("assert", Kind.OTHER, r"device-side assert triggered|Assertion .* failed"),
    _voice("usage", Kind.OTHER, r": error: (?:unrecognized arguments|the following arguments|argument )"),
    _voice("shell", Kind.OTHER, r": (?:command not found|No such file or directory)$"),
    _voice("time-limit", Kind.OTHER, r"CANCELLED AT .*DUE TO TIME LIMIT"),
    _voice("disk", Kind.OTHER, r"No space left on device|Disk quota exceeded"),
    # -- still at work -------------------------------------------------------------------------------
    _voice(
        "survived",
        Kind.PROGRESS,
        r"(?i)(?<!try )(?<!consider )(?<!by )\b(?:retrying|skipp(?:ing|ed)|falling back|halving|reducing"
        r"|trying|using|switching|continuing)\b.{0,60}\b(?:batch|cpu|smaller|chunk|sample|step)",
    ),
    _voice("bar", Kind.PROGRESS, r"\d+%\|.*\|\s*\d+/\d+ \["),
    _voice(
        "training",
        Kind.PROGRESS,
        r"(?i)^(?!.*(?:fail|error|abort|memory)).*\b(?:epoch|step|iter(?:ation)?|batch)\b[\s:=#\[(]*\d+"
        r".*(?:\bloss\b|\bacc|\blr\b|\bppl\b|it/s|s/it|ms/|samples/s|\d/\d)",
    ),
)


def find_voice(line: str) -> Optional[Voice]:
    """The first row whose pattern the line holds."""
    return next((voice for voice in VOICES if voice.pattern.search(line)), None)
