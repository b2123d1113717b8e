"""Run a training command under the tracer, from outside: limits, progress, and one answer.

Whatever the command does (exit, crash, fork, wait, run on), it ends in time with a summary or with a
`TargetError` that says what to do, and no process of it is left behind.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from slurm_gpumem.data import package_folder
from slurm_gpumem.errors import NotEstimatedError, TargetError
from slurm_gpumem.tracing.fake_cuda.gpu_facts import GpuFacts
from slurm_gpumem.tracing.guard import start
from slurm_gpumem.tracing.guard.leftovers import remove
from slurm_gpumem.tracing.guard.limits import Limits as Limits
from slurm_gpumem.tracing.guard.limits import bound, end, exceeded
from slurm_gpumem.tracing.guard.refusals import not_safe, only_refused
from slurm_gpumem.tracing.guard.slots import AS_FREE as AS_FREE
from slurm_gpumem.tracing.guard.slots import Slot
from slurm_gpumem.tracing.script.hints import ENDLESS
from slurm_gpumem.tracing.script.messages import Advice, State, explain, inference_notes, nothing_on_gpu
from slurm_gpumem.tracing.script.report_folder import (
    CHANGED,
    PRIVATE,
    SUMMARY,
    Messages,
    files_read,
    inference_file,
    read_file,
    read_json,
    strings_in,
)


class Output:
    """A pipe for a command's output, and whoever empties it: all of it is read, and only its end is kept."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self._last = b""
        self._reader: Optional[threading.Thread] = None

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._reader is None:
            os.close(self.write_end)
            os.close(self._read_end)

    def listen(self) -> None:
        """Once the command has been started: it ends when all its processes have."""
        os.close(self.write_end)
        self._reader = threading.Thread(target=self._empty, daemon=True)
        self._reader.start()

    def _empty(self) -> None:
        with open(self._read_end, "rb", buffering=0) as pipe:
            while True:
                data = pipe.read(1 << 16)
                if not data:
                    return
                self._last = (self._last + data)[-_KEPT:]

    def tail(self, lines: int) -> str:
        """The last lines, printable; called when the command has ended."""
        if self._reader is not None:
            self._reader.join(timeout=1.0)  # a process that nobody can end may hold the pipe
        text = self._last.decode(errors="replace")
        shown = ["".join(c if c.isprintable() else "?" for c in line) for line in text.splitlines()]
        return "\n".join(shown[-lines:])


# How much of this host's memory a traced process may take.


def most_of_free_mib() -> int:
    """Three quarters of what is free, at least 1 GiB; no limit where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, ValueError, StopIteration):
        return 1 << 40
    return max(1024, free // 1024 * 3 // 4)


_HERE = Path(__file__).resolve().parent
_PACKAGE_ROOT = str(_HERE.parents[2])
_POLL_S = 0.1
_KEPT = 16384
"""Bytes of a command's output ..."""
_TAIL_LINES = 40
"""... and lines of it that are told."""
_FINISH_S = 3.0
"""Before the limit, the traced process ends by itself if it has seen training ..."""
_QUIET_S = 3.0
"""... or this much after it, where it is busy with something else than PyTorch (`Steps.is_late`) ..."""
_WRITING_S = 30.0
"""... and may take so much longer to write down what it has seen: millions of events on a busy machine."""


@dataclass(frozen=True)
class TracedScript:
    """The answer."""

    summary: bytes
    facts: Dict[str, Any]
    """Steps, phases, what was seen and not."""
    notes: Tuple[str, ...]
    changed: Tuple[str, ...]
    """Files that the command wrote or removed, in its private copy only."""
    private: Dict[str, str]
    """How files and network were kept from it: "overlay" or "landlock"; "namespace" or "landlock"."""
    seconds: float
    ranks: int = 1
    """Processes that train together, where the command started or asked for several."""
    files: Tuple[str, ...] = ()
    """Files that its Python processes imported or read, besides those of installed packages ..."""
    packages: Tuple[str, ...] = ()
    """... and the folders of those."""


def trace_command(
    command: Sequence[str],
    limits: Limits = Limits(),  # noqa: B008 - frozen
    *,
    gpu: GpuFacts = GpuFacts(),  # noqa: B008 - frozen
    extra_path: Sequence[str] = (),
    environment: Optional[Dict[str, str]] = None,
    folder: Optional[str] = None,
    progress: Callable[[State, float], None] = lambda state, seconds: None,
    name: str = "",
    advice: Advice = Advice(),  # noqa: B008 - frozen
    left: str = "",
) -> TracedScript:
    """Trace the command, which messages call `name`; TargetError says what went wrong.

    NotEstimatedError for one that shards its model: what a rank holds is not in a trace of one process.
    `left`: a folder of the caller's that is removed should the caller be killed.
    """
    started = time.monotonic()
    slot = Slot(limits.at_once, limits.cpus) if limits.at_once is not None else None
    try:
        if slot is not None:
            slot.take(lambda place: progress(State(place=place), time.monotonic() - started))
        started = time.monotonic()
        asked = _Asked(
            command, limits, gpu, extra_path, environment, folder, progress, slot.number if slot else 0, left
        )
        state, traced = _once(asked, truth=True)
        if traced is None and state.guessed and not state.stopped and state.kind != ENDLESS:
            # A value that nobody knows was taken to be true, and the script did not like it.
            again, traced = _once(asked, truth=False)
            state = again if traced is not None else state
    finally:
        if slot is not None:
            slot.give_back()
    if state.not_estimated:
        raise NotEstimatedError(state.not_estimated, name or shlex.join(command))
    if traced is None:
        raise TargetError(explain(name or shlex.join(command), state, limits.seconds, advice))
    if state.done is not None and state.done.get("on_gpu") is False:
        raise TargetError(nothing_on_gpu(name or shlex.join(command)))
    of_inference = inference_notes(state.done or {})
    return replace(
        traced,
        facts=dict(state.done or {}),
        notes=tuple(dict.fromkeys(filter(None, (*state.notes, *of_inference, only_refused(state.private))))),
        seconds=time.monotonic() - started,
        ranks=state.ranks,
    )


@dataclass(frozen=True)
class _Asked:
    """What `trace_command` was called with."""

    command: Sequence[str]
    limits: Limits
    gpu: GpuFacts
    extra_path: Sequence[str]
    environment: Optional[Dict[str, str]]
    folder: Optional[str]
    progress: Callable[[State, float], None]
    slot: int
    left: str


def _once(asked: _Asked, *, truth: bool) -> Tuple[State, Optional[TracedScript]]:
    """Run it once; the answer lacks what the state knows."""
    try:
        folder = os.path.realpath(tempfile.mkdtemp(prefix="gpumem-trace-"))
    except OSError as error:
        raise TargetError(f"no folder for the trace in {tempfile.gettempdir()}: {error.strerror}") from None
    state = State()
    try:
        with Output() as output:
            env = _environment(asked, folder)
            env["GPUMEM_TRACE_TRUTH"] = "1" if truth else "0"
            # -S: what a package starts with Python (threads) would keep it from a namespace of its own.
            starter = [
                sys.executable,
                "-I",
                "-S",
                start.__file__,
                folder,
                str(asked.limits.scratch_mib),
                "--",
            ]
            # Ctrl-C waits until the child is known: in the middle of a start it would leave it running.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                child = subprocess.Popen(
                    [*starter, *asked.command],
                    cwd=asked.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output.write_end,
                    stderr=subprocess.STDOUT,
                    env=env,
                    start_new_session=True,
                    preexec_fn=lambda: bound(asked.limits, asked.slot),
                )
            except BaseException:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                raise
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                output.listen()
                _watch(child, folder, state, asked.limits, asked.progress)
            finally:
                end(child)
            state.output = output.tail(_TAIL_LINES)
        state.private = strings_in(read_json(folder, PRIVATE))
        if state.private.get("files") == "none":
            raise TargetError(not_safe(state.private))
        summary = read_file(folder, _answered_by(state) or SUMMARY)
        if state.done is None or summary is None:
            return state, None
        changed = read_json(folder, CHANGED)
        files, packages = files_read(folder)
        paths = tuple(map(str, changed)) if isinstance(changed, list) else ()
        return state, TracedScript(summary, {}, (), paths, state.private, 0.0, 1, files, packages)
    finally:
        remove(folder)


def _answered_by(state: State) -> str:
    """The file of the process that needed most, where a command ended well and none of it trained."""
    ended_well = state.exit_code == 0 and state.done is None and not state.stopped and not state.failed
    cut_off = state.done is not None and state.done.get("cut_off") is True
    if not state.inferences or not (ended_well or cut_off):
        return ""
    pid, facts = max(state.inferences, key=lambda one: int(one[1].get("peak_bytes", 0)))
    if cut_off and state.done is not None and state.done.get("peak_bytes", 0) >= facts["peak_bytes"]:
        return ""
    state.done = facts
    return inference_file(pid)


def _watch(
    child: subprocess.Popen[bytes],
    folder: str,
    state: State,
    limits: Limits,
    progress: Callable[[State, float], None],
) -> None:
    messages = Messages(folder)
    started = time.monotonic()
    most = limits.memory_mib or most_of_free_mib()
    while True:
        state.exit_code = child.poll()
        for message in messages.new():
            _take(message, state)
        if state.done is not None or state.not_estimated or state.exit_code is not None:
            return
        now = time.monotonic()
        progress(state, now - started)
        if now - started > _allowed(limits, state):
            state.stopped = "time"
            return
        state.stopped = exceeded(child.pid, folder, limits, most)
        if state.stopped:
            return
        time.sleep(_POLL_S)


def _allowed(limits: Limits, state: State) -> float:
    if state.finishing:
        return limits.seconds + _WRITING_S
    return limits.seconds + (_QUIET_S if state.training else 0.0)


def _take(message: Dict[str, Any], state: State) -> None:
    if "torch" in message:
        state.torch_processes += 1
    if "at" in message:
        state.at = str(message["at"]) or ("" if "passes" in message else state.at)
    if "cycles" in message:
        state.cycles = int(message["cycles"])
    if "training" in message:
        state.training = True
    if "finishing" in message:
        state.finishing = True
    if "note" in message:
        state.notes.append(str(message["note"]))
    if "not_estimated" in message:
        state.not_estimated = str(message["not_estimated"])
    if "models" in message:
        state.models += [str(name) for name in message["models"]]
    if "failed" in message and not state.done:
        state.failed = str(message["failed"])
        state.kind = str(message.get("kind", ""))
    if type(message.get("passes")) is int:
        state.passes = message["passes"]
    if isinstance(message.get("inference"), dict) and type(message.get("pid")) is int:
        state.inferences.append((message["pid"], message["inference"]))
    if type(message.get("ranks")) is int:
        state.ranks = max(state.ranks, message["ranks"])
    state.guessed = state.guessed or message.get("guessed") is True
    if isinstance(message.get("done"), dict):
        state.done = message["done"]


def _environment(asked: _Asked, folder: str) -> Dict[str, str]:
    """The user's environment, with the tracer in front, no network and no GPU."""
    env = dict(os.environ if asked.environment is None else asked.environment)
    # Set by whoever starts the trace, not by a launcher in it: what is traced is the first rank.
    env.update({name: "0" for name in ("RANK", "LOCAL_RANK") if name in env})
    closed = "http://127.0.0.1:9"  # the discard port: what has a proxy fails at once
    injected = package_folder("injected")
    path = env.get("PYTHONPATH", "")
    env.update(
        {
            "GPUMEM_TRACING": "1",
            "GPUMEM_TRACE_DIR": folder,
            start.LEFT: asked.left,
            "GPUMEM_TRACE_PACKAGE": _PACKAGE_ROOT,
            "GPUMEM_TRACE_INJECTED": injected,
            "GPUMEM_TRACE_GPU": asked.gpu.to_json(),
            "GPUMEM_TRACE_DEADLINE": str(time.monotonic() + asked.limits.seconds - _FINISH_S),
            "GPUMEM_TRACE_ONWARD": str(asked.limits.onward),
            "PYTHONPATH": f"{injected}{os.pathsep}{path}" if path else injected,
            "PATH": os.pathsep.join([*asked.extra_path, env.get("PATH", os.defpath)]),
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "WANDB_MODE": "disabled",
            "COMET_MODE": "disabled",
            "MLFLOW_TRACKING_URI": "file:///tmp/gpumem-mlruns",
            "http_proxy": closed,
            "https_proxy": closed,
            "HTTP_PROXY": closed,
            "HTTPS_PROXY": closed,
            "OMP_NUM_THREADS": env.get("OMP_NUM_THREADS", "1"),  # several wait for one another on a busy host
            "MPLBACKEND": "Agg",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "TORCHDYNAMO_DISABLE": "1",
            "BITSANDBYTES_NOWELCOME": "1",
        }
    )
    return env
