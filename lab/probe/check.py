"""Compare what single operators allocated on a GPU with what the tracer says of them.

    python -m lab.probe.check

The operators are those of lab/data/ground-truth/operators.jsonl.xz. Convolutions are left out: their
workspaces are computed at the replay. Sizes are compared as the allocator rounds them.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List

import torch
from torch import nn

from lab.command import print_lines
from lab.places import OPERATORS
from lab.probe.cases import Case, forward_of
from lab.rows import open_text
from slurm_gpumem.estimators.workspaces.convolutions import reduction_bytes
from slurm_gpumem.summaries.trace_types import Reduction
from slurm_gpumem.tracing.cuda.autocast import autocast_on_meta
from slurm_gpumem.tracing.cuda.recurrent import DROPOUT_STATE, NAME
from slurm_gpumem.tracing.cuda.substitutes import cuda_substitutes
from slurm_gpumem.tracing.engine.module_stack import Places
from slurm_gpumem.tracing.engine.recorder import Recorder
from slurm_gpumem.tracing.engine.recording import Guess

SMS = 132
PASSES = ("forward", "backward")
ROUNDED = 512
WORST = 20
"""Cases that are shown."""
Sizes = List[int]
"""Bytes of each event in order, releases negative."""


@dataclass(frozen=True)
class Compared:
    """One case, measured and traced."""

    case: Case
    measured: Dict[str, Sizes]
    traced: Dict[str, Sizes]

    @property
    def same(self) -> bool:
        """Whether both allocate and release the same sizes in the same order."""
        return self.measured == self.traced

    @property
    def peak_error(self) -> float:
        """How far the traced peak of a pass is from the measured one, the worse of both."""
        errors = []
        for name in PASSES:
            mine, real = _peak(self.traced[name]), _peak(self.measured[name])
            errors.append((mine - real) / max(real, ROUNDED))
        return max(errors, key=abs)

    @property
    def kept_error(self) -> float:
        """How far what the forward pass leaves alive is from what it left on the GPU."""
        mine, real = sum(self.traced["forward"]), sum(self.measured["forward"])
        return (mine - real) / max(real, ROUNDED)


def compare(case: Case) -> Compared:
    """Trace a case and put it beside its measurement."""
    traced = trace(case)
    return Compared(
        case={key: value for key, value in case.items() if key not in PASSES},
        measured={name: _rounded(_without_first_time(case[name])) for name in PASSES},
        traced={name: _rounded(traced[name]) for name in PASSES},
    )


def trace(case: Case) -> Dict[str, Sizes]:
    """What the tracer records of a case's forward and backward pass."""
    with ExitStack() as stack:
        autocast = stack.enter_context(autocast_on_meta())
        places = stack.enter_context(Places(nn.Module()))
        recorder = Recorder(places, autocast, Guess())
        stack.enter_context(cuda_substitutes(recorder))
        with recorder:
            # What stays from the first product on is there before a case runs, as on the GPU.
            for phase in PASSES:
                recorder.enter(phase, 0)
                recorder.cublas("aten::addmm")
            recorder.once("rnn dropout", DROPOUT_STATE, NAME)
            forward, leaves = forward_of(case, torch.device("meta"))
            recorder.enter("forward", 1)
            marks = [len(recorder.events)]
            out = forward()
            marks.append(len(recorder.events))
            gradient = torch.ones_like(out)
            recorder.enter("backward", 1)
            marks.append(len(recorder.events))
            out.backward(gradient)
            marks.append(len(recorder.events))
            spans = {"forward": (marks[0], marks[1]), "backward": (marks[2], marks[3])}
            found = {name: _sizes(recorder, *span) for name, span in spans.items()}
        del out, gradient, forward, leaves
    return found


def _sizes(recorder: Recorder, first: int, end: int) -> Sizes:
    sizes = []
    for event in recorder.events[first:end]:
        block = recorder.blocks[event if event >= 0 else ~event]
        nbytes = block.nbytes
        if isinstance(block.call, Reduction):
            nbytes = reduction_bytes(block.call, 0, SMS)
        if nbytes:
            sizes.append(nbytes if event >= 0 else -nbytes)
    return sizes


def _without_first_time(sizes: Sizes) -> Sizes:
    """Without the state of random numbers that the first network with dropout in a process makes."""
    if DROPOUT_STATE not in sizes:
        return sizes
    at = sizes.index(DROPOUT_STATE)
    return [*sizes[: at - 2], *sizes[at + 1 :]]


def _rounded(sizes: Sizes) -> Sizes:
    return [(1 if size > 0 else -1) * -(-abs(size) // ROUNDED) * ROUNDED for size in sizes]


def _peak(sizes: Sizes) -> int:
    now = most = 0
    for size in sizes:
        now += size
        most = max(most, now)
    return most


def cases_in(path: Path) -> Iterator[Case]:
    """The measured cases that went well, convolutions left out."""
    with open_text(path) as file:
        for line in file:
            if '"kind":"conv"' in line:  # most of the file, and slow to parse
                continue
            case = json.loads(line)
            if "about" not in case and "error" not in case and case["kind"] != "conv":
                yield case


def report(compared: List[Compared]) -> List[str]:
    """A line for each kind, then the cases that differ."""
    lines = []
    for kind in sorted({found.case["kind"] for found in compared}):
        group = [found for found in compared if found.case["kind"] == kind]
        same = sum(found.same for found in group)
        near = sum(_error(found) <= 0.01 for found in group)
        lines.append(f"{kind}: {len(group)} cases, {same} the same, {near} within 1 % in peak and rest")
    farthest = sorted(
        (found for found in compared if not found.same),
        key=lambda found: -_error(found),
    )
    for found in farthest[:WORST]:
        lines.append(f"\npeak {found.peak_error:+.1%}, kept {found.kept_error:+.1%}: {_named(found.case)}")
        for name in PASSES:
            if found.measured[name] != found.traced[name]:
                lines.append(f"  {name:8} measured {found.measured[name]}")
                lines.append(f"  {'':8} traced   {found.traced[name]}")
    return lines


def _error(found: Compared) -> float:
    return max(abs(found.peak_error), abs(found.kept_error))


def _named(case: Case) -> str:
    return " ".join(f"{key}={value}" for key, value in case.items())


if __name__ == "__main__":
    raise SystemExit(print_lines(lambda: report([compare(case) for case in cases_in(OPERATORS)])))
