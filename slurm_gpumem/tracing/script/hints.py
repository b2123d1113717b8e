"""What to do about an exception that ended a traced script: a line for each cause that its words tell."""

from __future__ import annotations

from typing import NamedTuple, Tuple

ENDLESS = "EndlessLoop"
"""The kind of failure after which another guess at values would only skip the loop."""

TOLD, PHASE = "told", "phase"
"""Kinds of failures that scripts of ours report: the words are the whole message, or what was going on."""

LONGER = "Allow more with --time-limit (gpusbatch: --trace-limit)"
MEASURED = "let one run be measured: gpusbatch without --trace"
_MEASURE = "measure a run instead, submit it with a GPU of its own once"
_OTHERWISE = f"Does it fail like this without the trace, too? Then fix that first; else {_MEASURE}."
"""Of causes that are not known."""
_LAUNCHER = (
    "It expects a launcher's variables: trace it with its launcher, "
    "gpumem trace -- torchrun --nproc-per-node 1 SCRIPT."
)
_DOWNLOAD = "Network access is disabled while tracing: download data and models before."


class _Cause(NamedTuple):
    """An exception of one of these kinds or with one of these words, and what to do."""

    kinds: Tuple[str, ...]
    words: Tuple[str, ...]
    advice: str


_CAUSES = (
    _Cause(
        (),
        ("You requested gpu: ", "invalid device ordinal", "Invalid device id"),
        "Say how many GPUs it has: gpumem trace --gpus 4; of a job, its own options say it.",
    ),
    _Cause((), ("huggingface.co", "Max retries exceeded", "urlopen error"), _DOWNLOAD),
    _Cause(
        (),
        ("No space left on device",),
        "What it writes goes to a private copy of a few GiB: prepare its caches before, without the trace.",
    ),
    _Cause(("FileNotFoundError",), ("No such file",), "Prepare its data first: a trace reads real files."),
    _Cause(
        (),
        ("NestedInt", "NestedTensor"),
        f"Nested tensors are not traced: {_MEASURE}.",
    ),
    _Cause(
        ("ModuleNotFoundError",),
        (),
        "Run it in the environment that the job uses: activate it before, or name its python.",
    ),
    _Cause(
        (),
        ("CUDA_HOME", "Error building extension", "Ninja is required", "nvcc"),
        f"It compiles a CUDA extension, whose kernels a trace cannot follow: {_MEASURE}.",
    ),
    _Cause(
        (),
        ("libcuda", "libnvidia", "libcublas", "undefined symbol"),
        f"A compiled package wants a GPU's driver, which a trace does not have: {_MEASURE}.",
    ),
    _Cause(
        ("ImportError",),
        (),
        "Its packages have other versions than it expects: run it in the environment that the job uses.",
    ),
    _Cause((ENDLESS,), (), "Measure a run instead: submit it with a GPU of its own once."),
    _Cause(
        ("EOFError",),
        (),
        "It asks for input, and nobody answers: pipe it in, gpumem trace -- bash -c 'echo ANSWER | COMMAND'.",
    ),
    _Cause(
        ("OutOfMemoryError",),
        (),
        "It does not fit on this GPU: name a larger one (--gpu), or let it take smaller batches.",
    ),
    _Cause(
        ("MemoryError",),
        ("DefaultCPUAllocator", "Cannot allocate memory"),
        "That is this machine's memory: trace where there is more of it.",
    ),
    _Cause((), ("environment variable RANK", "environment variable WORLD_SIZE"), _LAUNCHER),
)
_OFFLINE = ("Offline", "offline", "ConnectionError", "Connection refused", "getaddrinfo", "name resolution",
            "unreachable")  # fmt: skip
_RANKS = ("'RANK'", "'LOCAL_RANK'", "'WORLD_SIZE'", "'MASTER_ADDR'", "'MASTER_PORT'")


def advice_on(kind: str, failed: str) -> str:
    """What to do about it; `failed` is the error in its own words, and the line below them."""
    words = failed.partition("\n")[0]
    for cause in _CAUSES:
        if kind in cause.kinds or any(word in words for word in cause.words):
            return cause.advice
    if kind == "KeyError" and any(name in words for name in _RANKS):
        return _LAUNCHER
    if any(word in failed for word in _OFFLINE):
        return _DOWNLOAD
    return _OTHERWISE
