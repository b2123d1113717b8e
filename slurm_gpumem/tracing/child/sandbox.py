"""Run a user's model code in a child process: with limits, without network, and with one answer.

The child reports over its own pipe, one JSON object per line; what the code prints goes elsewhere.
Whatever it does (exit, crash, fork, run forever, print forever), the parent returns in time with a
summary or raises a `TargetError`, and leaves no process behind.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from slurm_gpumem.errors import TargetError
from slurm_gpumem.text import printable
from slurm_gpumem.tracing.child.spec import IMPORTING_TORCH, TraceRequest
from slurm_gpumem.tracing.host_memory import most_of_free_mib, resident_mib
from slurm_gpumem.units import MIB, format_mib

_POLL_S = 0.1
_STARTING = "starting Python"
_IMPORT_S = 300.0
_GRACE_S = 3.0
"""Time between the child's own alarm, which knows the line it is stuck in, and ours."""
_TAIL = 4096
_MESSAGE_LIMIT = MIB
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[3])

# The user's directory must not come before the standard library while our modules are imported. These are
# loaded by path: another environment's python has its own packages, and perhaps another version of ours.
_START = """
import importlib.util, sys
if sys.path[:1] == [""]:
    del sys.path[0]
folder = sys.argv[1] + "/slurm_gpumem"
spec = importlib.util.spec_from_file_location(
    "slurm_gpumem", folder + "/__init__.py", submodule_search_locations=[folder]
)
sys.modules["slurm_gpumem"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from slurm_gpumem.tracing.child.worker import main
main(sys.argv[2:])
"""


@dataclass(frozen=True)
class Limits:
    """Limits on the code's run time and memory."""

    seconds: float = 120.0
    memory_mib: Optional[int] = None
    """Of host memory; None: most of what is free."""


@dataclass(frozen=True)
class Traced:
    """The child's answer."""

    summary: bytes
    """The summary file's content."""
    notes: Tuple[str, ...]
    """Notes for the user: what was assumed, what was made harmless."""
    facts: Dict[str, Any]
    """Facts about the run: seconds, how it was traced."""


@dataclass
class _State:
    phase: str = _STARTING
    notes: List[str] = field(default_factory=list)
    answer: Optional[Dict[str, Any]] = None
    error: Optional[str] = None
    stuck: str = ""
    printed: bytearray = field(default_factory=bytearray)


def trace_in_child(
    request: TraceRequest,
    limits: Limits = Limits(),
    *,
    python: Optional[str] = None,
    show_output: bool = False,
    progress: Callable[[str, float], None] = lambda phase, seconds: None,
) -> Traced:
    """Trace the target in a new interpreter; TargetError says what went wrong, and where."""
    with tempfile.TemporaryDirectory(prefix="gpumem-") as folder:
        result = os.path.join(folder, "summary")
        state = _run(request, result, limits, python or sys.executable, show_output, progress)
        if state.error is not None:
            raise TargetError(state.error)
        if state.answer is None or not os.path.exists(result):
            raise TargetError(f"{request.target.label}: the trace ended without an answer")
        summary = Path(result).read_bytes()
    return Traced(summary, tuple(dict.fromkeys(state.notes)), state.answer)


def _run(
    request: TraceRequest,
    result: str,
    limits: Limits,
    python: str,
    show_output: bool,
    progress: Callable[[str, float], None],
) -> _State:
    state = _State()
    read_end, write_end = os.pipe()
    limit_mib = limits.memory_mib or most_of_free_mib()
    arguments = [_PACKAGE_ROOT, str(write_end), result, str(limits.seconds), request.to_json()]
    mark = f"{_MARK}={os.getpid()}-{time.monotonic_ns()}"
    before = set(_children_of(os.getpid()))
    _adopt_orphans(True)
    try:
        child = subprocess.Popen(
            [python, "-c", _START, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(write_end,),
            env={**_environment(), **dict([mark.split("=", 1)])},
            start_new_session=True,
        )
    except OSError as error:
        os.close(read_end)
        raise TargetError(f"{python}: cannot be started: {error.strerror}") from None
    finally:
        os.close(write_end)
    try:
        _listen(child, read_end, state, limits, limit_mib, show_output, progress)
    finally:
        os.close(read_end)
        _end_all(child, before, mark)
        _adopt_orphans(False)
    if state.error is None and state.answer is None:
        state.error = f"{request.target.label}: {_how_it_ended(child.returncode, state)}"
    return state


def _listen(
    child: subprocess.Popen[bytes],
    messages: int,
    state: _State,
    limits: Limits,
    limit_mib: int,
    show_output: bool,
    progress: Callable[[str, float], None],
) -> None:
    """Read the child's messages and its output until it ends, answers, or exceeds a limit."""
    assert child.stdout is not None
    started = clock = time.monotonic()
    pending = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(messages, selectors.EVENT_READ)
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            ended = child.poll() is not None
            for key, _ in selector.select(0 if ended else _POLL_S):
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.fd == messages:
                    pending += data
                    _take_messages(pending, state)
                else:
                    _take_output(data, state, show_output)
            # A forked process may hold the pipes open forever: only the child's own end counts.
            if ended or state.answer is not None or state.error is not None:
                return
            now = time.monotonic()
            progress(state.phase, now - started)
            if state.phase in (_STARTING, IMPORTING_TORCH):
                clock = now
            if now - clock > limits.seconds + _GRACE_S:
                state.error = _too_long(state, limits.seconds)
            elif clock - started > _IMPORT_S:
                state.error = f"stopped: {state.phase} took longer than {_IMPORT_S:.0f} s"
            elif resident_mib(child.pid) > limit_mib:
                state.error = (
                    f"stopped: {state.phase} took more than {format_mib(limit_mib)} of host memory.\n"
                    "Allow more with --memory-limit 16G, or trace where there is more memory."
                )


def _take_messages(pending: bytearray, state: _State) -> None:
    while b"\n" in pending:
        line, _, rest = bytes(pending).partition(b"\n")
        pending[:] = rest
        try:
            message = json.loads(line)
        except ValueError:
            continue  # the user's code wrote to our pipe
        if not isinstance(message, dict):
            continue
        if "phase" in message:
            state.phase = str(message["phase"])
        if "note" in message:
            state.notes.append(str(message["note"]))
        if "error" in message:
            state.error = str(message["error"])
        if "done" in message and isinstance(message["done"], dict):
            state.answer = message["done"]
    if len(pending) > _MESSAGE_LIMIT:
        pending.clear()


def _take_output(data: bytes, state: _State, show_output: bool) -> None:
    state.printed += data
    del state.printed[:-_TAIL]
    if show_output:
        text = data.decode(errors="replace")
        sys.stderr.write("\n".join(map(printable, text.split("\n"))))


def _too_long(state: _State, seconds: float) -> str:
    return (
        f"stopped: {state.phase} took longer than {seconds:.0f} s.\n"
        "Does it train or read data? Name a function that only builds the model,\n"
        "or allow more time with --time-limit 600."
    )


def _how_it_ended(code: Optional[int], state: _State) -> str:
    said = [line.strip() for line in state.printed.decode(errors="replace").splitlines() if line.strip()]
    last = f"\nIts last output: {said[-1][:200]}" if said else ""
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = " (out of host memory?)" if name == "SIGKILL" else ""
        return f"the process was killed by {name} while {state.phase}{hint}.{last}"
    return f"the process ended itself with code {code} while {state.phase} (os._exit?).{last}"


# -- Processes ---------------------------------------------------------------------------------------


def _environment() -> Dict[str, str]:
    """The user's environment, with settings that tell libraries that there is no network and no GPU."""
    closed = "http://127.0.0.1:9"  # the discard port: wget and curl fail at once
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "WANDB_MODE": "disabled",
        "http_proxy": closed,
        "https_proxy": closed,
        "HTTP_PROXY": closed,
        "HTTPS_PROXY": closed,
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "MPLBACKEND": "Agg",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8:replace",
    }


def _end_all(child: subprocess.Popen[bytes], before: Set[int], mark: str) -> None:
    """End the child, its process group, and processes it left behind in other sessions.

    Our caller may have other children, whose orphans may become ours in the meantime: only processes with
    the child's mark in their environment are ended.
    """
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # all gone already
    child.wait()
    if child.stdout is not None:
        child.stdout.close()
    for pid in _children_of(os.getpid()):
        if pid in before or not _bears(pid, mark):
            continue
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError, PermissionError):
            pass  # ended in between


def _bears(pid: int, mark: str) -> bool:
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # ended in between, or not readable: then not ours to end


_MARK = "GPUMEM_TRACED_BY"
_PR_SET_CHILD_SUBREAPER = 36


def _adopt_orphans(on: bool) -> None:
    """Adopt processes that the child leaves behind, so that we can end them (Linux only)."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def _children_of(pid: int) -> List[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (OSError, ValueError):
        return []  # no such file on this system: we can reach only the process group
