"""What an exception of the user's code means: the error, the line of their code, and what to do."""

from __future__ import annotations

from typing import Any, List

from slurm_gpumem.errors import GpumemError, TargetError
from slurm_gpumem.tracing.model.spec import TraceRequest
from slurm_gpumem.tracing.user_line import innermost, is_ours, own_words, user_line

_OFFLINE = (
    "OfflineModeIsEnabled",
    "LocalEntryNotFoundError",
    "HfHubHTTPError",
    "URLError",
    "ConnectionError",
)
_HINTS = (
    (("libcud", "CUDA_HOME", "nvcc"),
     "CUDA extensions do not load without CUDA; trace with the PyTorch fallback of this code."),
    (("torch.distributed", "process group"),
     "Only one process on one GPU is traced: name a function that builds the bare model."),
    (("relative import",),
     "Name it as a module: package.module:build_model, from the directory above the package."),
)  # fmt: skip


def failure(error: BaseException, phase: str, request: TraceRequest) -> str:
    """One message for people; `phase` is what was going on."""
    label = request.target.label
    if isinstance(error, TargetError):
        return str(error)
    if isinstance(error, GpumemError):
        return f"{label}: {error}"
    return "\n".join(line for line in _lines(error, phase, request) if line)


def _lines(error: BaseException, phase: str, request: TraceRequest) -> List[str]:
    label, where = request.target.label, user_line(error)
    if isinstance(error, SystemExit):
        words = " ".join(str(error.code).split())[:200]
        said = f" saying: {words}" if isinstance(error.code, str) else f" with code {error.code or 0}"
        return [
            f"{label}: the code called sys.exit{said} while {phase}.",
            where,
            "Name a function that only builds the model.",
        ]
    if any(type(one).__name__ in _OFFLINE or isinstance(one, ConnectionError) for one in _chain(error)):
        return [
            f"{label}: the code tried to download; network access is disabled.",
            where,
            "Weights do not matter for memory: build it without them (pretrained=False, from_config),",
            "or download it first: files in the local cache are used.",
        ]
    if isinstance(error, ModuleNotFoundError):
        return [
            f"{label}: needs the package {error.name!r}, which is not installed for this Python.",
            where,
            "Install it, or name an environment that has it: --python ~/env/bin/python",
        ]
    if isinstance(error, RecursionError):
        return [f"{label}: endless recursion while {phase}.", where]
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return [f"{label}: not enough host memory while {phase}.", where, own_words(error)]
    if isinstance(error, EOFError):
        return [f"{label}: the code asks for input (input()), but there is no terminal.", where]
    if is_ours(error):
        return [
            f"{label}: a fault in gpumem while {phase}; please report it with this line.",
            f"{own_words(error)} ({innermost(error)})",
        ]
    runs = phase.startswith("tracing")
    what = "the model does not run with this input" if runs else f"failed while {phase}"
    return [f"{label}: {what}.", where, own_words(error), _hint(error, runs, request)]


def _hint(error: BaseException, runs: bool, request: TraceRequest) -> str:
    text = str(error)
    if runs and request.inputs:
        shapes = ", ".join(
            (f"{one.name}=" if one.name else "") + str(list(one.shape(request.batch_size)))
            for one in request.inputs
        )
        if isinstance(error, TypeError) and "argument" in text:
            return (
                f"It was called with {shapes}; name inputs by --input NAME=SHAPE, repeat --input for several."
            )
        return f"It was called with {shapes}: --input is the shape of one sample, without the batch."
    return next((hint for words, hint in _HINTS if any(word in text for word in words)), "")


def _chain(error: BaseException) -> List[BaseException]:
    found: List[BaseException] = []
    current: Any = error
    while current is not None and current not in found and len(found) < 20:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found
