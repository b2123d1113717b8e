"""The child process: loads the user's code under the rules, traces it, answers with one summary.

Started by `sandbox`; reports to it over a pipe, one JSON object per line: {"phase": ...}, {"note": ...},
and finally either {"done": ...} or {"error": ...}.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from typing import Any, Iterator, List, Sequence

from slurm_gpumem.errors import GpumemError, TargetError
from slurm_gpumem.tracing.child.blame import from_stack, innermost, is_ours, own_words, user_line
from slurm_gpumem.tracing.child.rules import NetworkRefusedError, Rules, die_with_parent
from slurm_gpumem.tracing.child.spec import IMPORTING_TORCH, TraceRequest

_OFFLINE = (
    "OfflineModeIsEnabled",
    "LocalEntryNotFoundError",
    "HfHubHTTPError",
    "URLError",
    "ConnectionError",
)


class Line:
    """The pipe to the parent; silent in processes that the user's code forked."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self.phase = "starting Python"
        self.files: List[str] = []
        """Files that the user's code has read."""

    def say(self, **message: Any) -> None:
        """Send one message."""
        if os.getpid() != self._owner:
            os._exit(0)
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]

    def enter(self, phase: str) -> None:
        """Report the current phase."""
        self.phase = phase
        self.say(phase=phase)

    def fail(self, message: str) -> None:
        """Report an error and end."""
        self.say(error=message)
        os._exit(1)


def main(arguments: Sequence[str]) -> None:
    """Entry point; arguments: descriptor, file for the summary, seconds, request."""
    started = time.monotonic()
    descriptor, result, seconds, text = arguments
    line = Line(int(descriptor))
    os.set_inheritable(line._descriptor, False)
    die_with_parent()
    request = TraceRequest.from_json(text)
    rules = Rules()
    line.enter(IMPORTING_TORCH)
    with _told(line, rules, request):
        _import_torch()
        imported = time.monotonic()
        # The limit is for the user's code: on a busy machine importing torch alone may take many seconds.
        threading.Thread(target=_watch, args=(line, float(seconds)), daemon=True).start()
        rules.enforce(lambda: None)
        from slurm_gpumem.tracing.child.tracing import trace_target

        line.files = rules.opened
        facts = trace_target(request, line, result)
        facts["seconds"] = round(time.monotonic() - started, 2)
        facts["import_seconds"] = round(imported - started, 2)
        line.say(done=facts)
    # No interpreter shutdown: do not wait for the user's exit handlers and threads.
    os._exit(0)


def _import_torch() -> None:
    try:
        import torch
    except ImportError as error:
        if error.name == "torch":
            raise TargetError(
                f"PyTorch is not installed for {sys.executable}.\n"
                "pip install 'slurm-gpumem[torch]', or name your environment's: --python ~/env/bin/python"
            ) from None
        raise TargetError(f"PyTorch cannot be imported: {own_words(error)}") from None
    torch.set_num_threads(1)


def _watch(line: Line, seconds: float) -> None:
    """End the process when its time is up, and report the line of the user's code that is running."""
    time.sleep(seconds)
    frames = sys._current_frames()
    main_thread = threading.main_thread().ident
    frame = frames.get(main_thread) if main_thread is not None else None
    where = from_stack(traceback.extract_stack(frame)) if frame is not None else ""
    line.fail(
        f"stopped: {line.phase} took longer than {seconds:.0f} s"
        + (f".\nIt was in {where}\n" if where else ".\n")
        + "Name a function that only builds the model (no data, no training), or use --time-limit 600."
    )


@contextmanager
def _told(line: Line, rules: Rules, request: TraceRequest) -> Iterator[None]:
    """Turn whatever ends the trace into one message."""
    label = request.target.label
    try:
        yield
    except SystemExit as error:
        said = (
            f" saying: {_short(error.code)}"
            if isinstance(error.code, str)
            else f" with code {error.code or 0}"
        )
        line.fail(
            f"{label}: the code called sys.exit{said} while {line.phase}.\n{user_line(error)}\n"
            "Name a function that only builds the model."
        )
    except TargetError as error:
        line.fail(str(error))
    except GpumemError as error:
        line.fail(f"{label}: {error}")
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything; all of it is told
        if os.environ.get("GPUMEM_TRACE_DEBUG"):
            traceback.print_exc()
        line.fail(message_for(error, line, rules, request))


def message_for(error: BaseException, line: Line, rules: Rules, request: TraceRequest) -> str:
    """What an exception of the user's code means: the error, the line, and what to do."""
    label = request.target.label
    where = user_line(error)
    lines: List[str] = []
    chain = _chain(error)
    offline = next(
        (e for e in chain if type(e).__name__ in _OFFLINE or isinstance(e, NetworkRefusedError)), None
    )
    if offline is not None or (rules.refused and isinstance(error, OSError)):
        host, at = rules.refused[-1] if rules.refused else ("", "")
        lines = [
            f"{label}: the code tried to download{f' from {host}' if host else ''};"
            " network access is disabled.",
            where or at,
            "Weights do not matter for memory: build it without them (pretrained=False, from_config),",
            "or download it first: files in the local cache are used.",
        ]
    elif isinstance(error, ModuleNotFoundError):
        lines = [
            f"{label}: needs the package {error.name!r}, which is not installed for this Python.",
            where,
            "Install it, or name an environment that has it: --python ~/env/bin/python",
        ]
    elif isinstance(error, RecursionError):
        lines = [f"{label}: endless recursion while {line.phase}.", where]
    elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        lines = [f"{label}: not enough host memory while {line.phase}.", where, own_words(error)]
    elif isinstance(error, KeyboardInterrupt):
        lines = [f"{label}: interrupted while {line.phase}.", where]
    elif isinstance(error, EOFError):
        lines = [f"{label}: the code asks for input (input()), but there is no terminal.", where]
    elif is_ours(error):
        lines = [
            f"{label}: a fault in gpumem while {line.phase}; please report it with this line.",
            f"{own_words(error)} ({innermost(error)})",
        ]
    else:
        lines = [
            f"{label}: {_what_failed(line.phase)}.",
            where,
            own_words(error),
            _hint(error, line, request),
        ]
    return "\n".join(text for text in lines if text)


def _what_failed(phase: str) -> str:
    if phase.startswith("tracing"):
        return "the model does not run with this input"
    return f"failed while {phase}"


def _hint(error: BaseException, line: Line, request: TraceRequest) -> str:
    text = str(error)
    if line.phase.startswith("tracing") and request.inputs:
        shapes = ", ".join(
            (f"{one.name}=" if one.name else "") + str(list(one.shape(request.batch_size)))
            for one in request.inputs
        )
        if isinstance(error, TypeError) and "argument" in text:
            return (
                f"It was called with {shapes}; name inputs by --input NAME=SHAPE, repeat --input for several."
            )
        return f"It was called with {shapes}: --input is the shape of one sample, without the batch."
    if "libcud" in text or "CUDA_HOME" in text or "nvcc" in text:
        return "CUDA extensions do not load without CUDA; trace with the PyTorch fallback of this code."
    if "torch.distributed" in text or "process group" in text:
        return "Only one process on one GPU is traced: name a function that builds the bare model."
    if "CUDA tensor" in text or "must be on CUDA" in text or "is_cuda" in text:
        return "A CUDA extension needs a tensor on a GPU; trace with the PyTorch fallback of this code."
    if "relative import" in text:
        return "Name it as a module: package.module:build_model, from the directory above the package."
    return ""


def _chain(error: BaseException) -> List[BaseException]:
    found: List[BaseException] = []
    current: Any = error
    while current is not None and current not in found and len(found) < 20:
        found.append(current)
        current = current.__cause__ or current.__context__
    return found


def _short(text: Any) -> str:
    return " ".join(str(text).split())[:200]
