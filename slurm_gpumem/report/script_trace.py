"""What `gpumem trace` tells people: what was traced, what was seen and not, and what the command changed."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Protocol, Sequence

from slurm_gpumem.estimators.training_job import describe_estimated
from slurm_gpumem.estimators.types import Estimate
from slurm_gpumem.report.estimate import describe_model
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.terminal.progress import StatusLine
from slurm_gpumem.terminal.say import say
from slurm_gpumem.text import clipped, count
from slurm_gpumem.units import MIB, ceil_div

_PHASES = {"evaluate": "evaluation", "checkpoint": "writing a checkpoint", "end": "the script's end"}
_WIDTH = 100
_SHOWN = 3


class Traced(Protocol):
    """A trace of a command."""

    @property
    def facts(self) -> Dict[str, Any]: ...
    @property
    def seconds(self) -> float: ...
    @property
    def ranks(self) -> int: ...
    @property
    def changed(self) -> Sequence[str]: ...
    @property
    def private(self) -> Dict[str, str]: ...


class Running(Protocol):
    """A command that is traced."""

    place: int
    """In the queue; 0: it has begun."""
    at: str
    training: bool
    cycles: int


def trace_lines(
    command: str, summary: ModelSummary, traced: Traced, estimate: Estimate, shard_mib: int
) -> List[str]:
    """The answer, in a few lines."""
    facts = traced.facts
    lines = [
        clipped(f"{command}: {describe_model(summary)}, {describe_estimated(summary, estimate)}", _WIDTH),
        f"  {_seen_text(facts, traced.seconds)}",
        f"  {_peak_text(estimate, shard_mib)}",
        f"  {_changed_text(traced.changed, traced.private)}",
    ]
    if facts.get("failure"):
        lines.append("  it failed later: " + clipped(str(facts["failure"]).replace("\n", "; "), _WIDTH - 20))
    if facts.get("onward_failure"):
        why = clipped(str(facts["onward_failure"]).replace("\n", "; "), _WIDTH - 40)
        lines.append(f"  it was not followed further: {why}")
    if facts.get("grown_bytes", 0) >= MIB:
        lines.append(
            f"  memory grows by {facts['grown_bytes'] >> 20:,} MiB over these steps: something is kept"
        )
    return lines


def rank_notes(summary: ModelSummary, traced: Traced) -> List[str]:
    """How the memory of one of several ranks came to be known."""
    job = summary.trace.job if summary.trace else None
    if job is None or traced.ranks < 2:
        return []
    if job.ranks < traced.ranks:
        return [f"it works with {traced.ranks} processes or GPUs, each of which needs at most this much"]
    return [
        f"rank 0 of {job.ranks} was traced; nothing was sent between ranks. Every GPU holds the whole model"
    ]


def _peak_text(estimate: Estimate, shard_mib: int) -> str:
    peak, asked = f"peak {estimate.peak_mib:,} MiB on", f"request {estimate.request_mib:,} MiB"
    if estimate.job.gpus > 1:
        return f"{peak} each of {estimate.job.gpus} {estimate.gpu} -> {asked} of each"
    shards = ceil_div(estimate.request_mib, shard_mib)
    return f"{peak} {estimate.gpu} -> {asked} = {count(shards, 'shard')}"


def _seen_text(facts: Dict[str, Any], seconds: float) -> str:
    if facts["kind"] == "inference":
        passes = count(int(facts["passes"]), "forward pass", "forward passes")
        return f"seen: inference, no training ({passes} in {seconds:.1f} s)"
    phases = {*facts["phases"], *(["end"] if facts.get("ended") else [])}
    seen = ["training", *(name for phase, name in _PHASES.items() if phase in phases)]
    missing = [name for phase, name in _PHASES.items() if phase not in phases]
    steps = f"{count(int(facts['steps']), 'optimizer step')} in {seconds:.1f} s"
    steps = f"{facts['unfinished']}; {steps}" if facts.get("unfinished") else steps
    return f"seen: {', '.join(seen)} ({steps})" + (f"; not seen: {', '.join(missing)}" if missing else "")


def _changed_text(changed: Sequence[str], private: Dict[str, str]) -> str:
    how = private.get("files", "")
    if how == "landlock":
        return "your files are unchanged: writing outside a scratch directory was refused"
    if not changed:
        return "it wrote no files"
    names = ", ".join(os.path.basename(path) for path in changed[:_SHOWN])
    more = " ..." if len(changed) > _SHOWN else ""
    return f"your files are unchanged: {count(len(changed), 'file')} went to a private copy ({names}{more})"


def shown_on(line: StatusLine) -> Callable[[Running, float], None]:
    """Shows how far a trace is; in a pipe or a log, once, that it waits."""
    said = False

    def show(state: Running, seconds: float) -> None:
        nonlocal said
        line(_progress_text(state, seconds))
        if state.place and not line.on and not said:
            said = True
            say(f"{_waiting_text(state)} (trace.at_once in gpumem.toml)")

    return show


def _waiting_text(state: Running) -> str:
    return f"waiting for other traces on this machine, place {state.place} of yours in the queue"


def _progress_text(state: Running, seconds: float) -> str:
    """One line while it runs."""
    if state.place:
        return clipped(f"{_waiting_text(state)}, {seconds:.0f} s", _WIDTH)
    if state.training:
        return f"tracing: {count(state.cycles, 'step')}, {seconds:.0f} s"
    return clipped(f"tracing: {state.at or 'starting'}, {seconds:.0f} s", _WIDTH)
