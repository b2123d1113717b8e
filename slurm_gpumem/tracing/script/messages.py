"""Why a traced command gave no answer, for people: what happened, in which line, and what to do."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from slurm_gpumem.text import count
from slurm_gpumem.tracing.guard.refusals import refused_by_trace
from slurm_gpumem.tracing.own_code import is_users
from slurm_gpumem.tracing.script.hints import PHASE, TOLD, advice_on
from slurm_gpumem.tracing.script.inference import INFERENCE
from slurm_gpumem.tracing.user_line import shortened

_USAGE = 2
_NOT_FOUND = (126, 127)
"""A shell's codes of commands that cannot be started."""


@dataclass
class State:
    """What is known of the running command."""

    place: int = 0
    """Among those that wait for their turn; 0: it has begun."""
    at: str = ""
    torch_processes: int = 0
    training: bool = False
    finishing: bool = False
    """Enough was seen, and is being written down."""
    cycles: int = 0
    done: Optional[Dict[str, Any]] = None
    inferences: List[Tuple[int, Dict[str, Any]]] = field(default_factory=list)
    """Processes that ended after forward passes and no training, with what was seen of each."""
    passes: int = 0
    """Forward passes before it failed."""
    failed: str = ""
    kind: str = ""
    guessed: bool = False
    models: List[str] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    exit_code: Optional[int] = None
    stopped: str = ""
    output: str = ""
    private: Dict[str, str] = field(default_factory=dict)
    """How it was kept from everything outside."""
    ranks: int = 1
    not_estimated: str = ""
    """Why the rest of the run would tell nothing of its peak."""


class Advice(NamedTuple):
    """How whoever called allows a command more."""

    time: str = "--time-limit 600"
    memory: str = "--memory-limit 32G"


def explain(label: str, state: State, seconds: float, advice: Advice) -> str:
    """One message."""
    label = label if len(label) <= 60 else label[:56] + " ..."
    lines: List[str]
    if state.stopped == "time":
        lines = _too_long(label, state, seconds, advice.time)
    elif state.stopped == "processes":
        lines = [
            f"{label}: stopped, it starts more and more processes.",
            _at(state),
            "Let it start fewer (workers of its loaders, environments), or stop them when they are done.",
        ]
    elif state.stopped.startswith("disk"):
        lines = [
            f"{label}: stopped, it wrote {state.stopped.partition(': ')[2]} into the trace's own folder.",
            _at(state),
            "Let it write less at first.",
        ]
    elif state.stopped:
        lines = [
            f"{label}: stopped, it takes {state.stopped.partition(': ')[2]} of host memory.",
            _at(state),
            f"Allow more with {advice.memory}, or trace where there is more memory.",
        ]
    elif state.kind == TOLD:
        lines = [state.failed]
    elif state.kind == PHASE:
        lines = [f"{label}: the process {_ended(state.exit_code)} while {state.failed}.", _last_line(state)]
    elif state.failed:
        lines = _failed(label, state, _when(state.passes), state.failed, state.kind)
    elif state.exit_code and (printed := printed_error(state.output)) is not None:
        when = _when(state.passes) if state.torch_processes else "before it imported torch"
        lines = _failed(label, state, when, printed.text, printed.kind)
    elif not state.torch_processes:
        lines = [
            f"{label}: {_ended(state.exit_code)}; none of its Python processes imported torch.",
            _last_line(state),
            _not_started(state),
        ]
    else:
        models = f" It called {', '.join(dict.fromkeys(state.models))}." if state.models else ""
        seen = ", after forward passes" if state.inferences else " or a forward pass on the GPU"
        lines = [
            f"{label}: {_ended(state.exit_code)} without a step of an optimizer{seen}.{models}",
            _last_line(state),
            "Name the command that trains. One that only calls models on the GPU must end with code 0.",
        ]
    if os.environ.get("GPUMEM_TRACE_DEBUG") and state.notes:
        lines.append(state.notes[-1])
    return "\n".join(line for line in lines if line)


def _failed(label: str, state: State, when: str, text: str, kind: str) -> List[str]:
    refused = refused_by_trace(state.private, text)
    headline = "the trace stopped it" if refused else "the script failed"
    return [f"{label}: {headline} {when}.", *text.split("\n"), refused or advice_on(kind, text)]


def nothing_on_gpu(label: str) -> str:
    """Of a command that came to training or forward passes, all of them on the CPU."""
    return (
        f"{label}: nothing was put on the GPU: its models and batches stay on the CPU.\n"
        'Does it move them (.to("cuda")), or does an option choose the device? If it is to run on the CPU, '
        "ask for no GPU."
    )


def inference_notes(facts: Dict[str, Any]) -> List[str]:
    """What a user should know of a trace without training; nothing of other traces."""
    if facts.get("kind") != INFERENCE:
        return []
    passes = count(int(facts["passes"]), "forward pass", "forward passes")
    notes = []
    if facts["unused"]:
        notes.append(
            f"it made an optimizer ({facts['unused']}) that took no step: traced as inference. If the job "
            "trains, trace the command that does"
        )
    if facts["new_tokens"]:
        notes.append(
            f"every text is taken to reach the {facts['new_tokens']:,} new tokens that generate() was "
            "allowed; texts that end earlier need less"
        )
    if facts["cut_off"]:
        grows = "memory was still growing, so a longer run needs more"
        then = grows if facts["growing"] else "the last ones set no new peak"
        notes.append(f"the time limit ended it after {passes} without training; {then}")
    return notes


def _when(passes: int) -> str:
    if not passes:
        return "before its first optimizer step"
    return f"after {count(passes, 'forward pass', 'forward passes')}, before any optimizer step"


def _too_long(label: str, state: State, seconds: float, allow: str) -> List[str]:
    if not state.torch_processes:
        return [
            f"{label}: stopped after {seconds:.0f} s, before torch was imported.",
            f"Is this machine busy, or does the command wait for something? Allow more with {allow}.",
        ]
    if state.kind == PHASE:
        return [
            f"{label}: {state.failed} took longer than {seconds:.0f} s.",
            _at(state),
            f"Name a function that only builds the model (no data, no training), or allow more with {allow}.",
        ]
    where = "in its training loop" if state.training else _when(state.passes)
    if state.passes and not state.training and not state.at:
        return [
            f"{label}: stopped after {seconds:.0f} s, {where}.",
            "It calls its models before it trains: let it collect less first (steps of a rollout, samples), "
            f"or allow more with {allow}.",
        ]
    return [
        f"{label}: stopped after {seconds:.0f} s, {where}.",
        _at(state),
        f"Does it prepare data on the way? Do that once before, or allow more with {allow}.",
    ]


def _ended(code: Optional[int]) -> str:
    """A shell's code of a signal, or Python's."""
    number = code - 128 if code and code > 128 else -code if code and code < 0 else 0
    try:
        return f"ended by {signal.Signals(number).name}" if number else f"ended with code {code}"
    except ValueError:
        return f"ended with code {code}"


def _at(state: State) -> str:
    return f"It was in {state.at}" if state.at else ""


def _not_started(state: State) -> str:
    if "can't open file" in state.output or state.exit_code in _NOT_FOUND:
        return "Is the command written as it works in this folder? Name it behind --, with its path."
    if state.exit_code == _USAGE:
        return "Are its arguments right? It ended before it did anything."
    return "Is PyTorch in this environment? Python started with -I, -E or -S cannot be traced."


def _last_line(state: State) -> str:
    lines = [line.strip() for line in state.output.splitlines() if line.strip()]
    return f"Its last line: {lines[-1][:200]}" if lines else ""


# An exception that a traced command only printed: before torch was imported, or caught by a framework.


_ERROR = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Interrupt))(?::\s*(.*))?$")
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+)(?:, in (\S+))?')
_PYTHON = re.compile(r"/lib(?:64)?/python3[^/]*/")
"""Of any Python, not only the one that reads this."""


class Printed(NamedTuple):
    """What a traceback says."""

    kind: str
    text: str
    """The error in its own words, and below them the innermost line of the user's code, if there is one."""


def printed_error(output: str) -> Optional[Printed]:
    """The last exception in the last lines of an output; None where there is none with a traceback."""
    lines = output.splitlines()
    for at in range(len(lines) - 1, -1, -1):
        found = _ERROR.match(lines[at])
        if found is None:
            continue
        place = _place(lines, at)
        if place is None:
            return None
        kind, words = found.group(1), found.group(2) or ""
        error = shortened(f"{kind}: {words}" if words else kind)
        return Printed(kind, f"{error}\n{place}" if place else error)
    return None


def _place(lines: list[str], end: int) -> Optional[str]:
    """The user's innermost frame above an error; "" where all are libraries', None where there is none."""
    seen = False
    for at in range(end - 1, -1, -1):
        frame = _FRAME.match(lines[at])
        if frame is None:
            continue
        seen = True
        path, line, name = frame.groups()
        if _PYTHON.search(path) or not is_users(path):
            continue
        inside = "" if name in (None, "<module>") else f", in {name}"
        code = lines[at + 1].strip() if at + 1 < end and not _FRAME.match(lines[at + 1]) else ""
        shown = f": {shortened(code, 100)}" if code else ""
        return f"{os.path.basename(path)}, line {line}{inside}{shown}"
    return "" if seen else None
