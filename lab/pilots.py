"""How often a job's memory grows after its peak was steady: an array's first task, measured for the others.

    python -m lab.pilots            minutes: the traces of all public scripts are replayed

A rule says when a peak counts as steady; the other tasks then get it and 20 % more. Judged is the process's
memory on an H200, reserved and context, without what cuDNN only tries. Traces know no time: rules count
steps, f times those until the last growth. They end epochs early: in a real first epoch the peak is steady
long before the first evaluation.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from statistics import median
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

from lab.command import print_lines
from lab.known_jobs import disturbed
from lab.places import DATA, SCRIPT_ROWS
from lab.rows import read_rows
from lab.scripts.lists import LISTS
from lab.scripts.score import load, measured_need
from lab.scripts.strata import strata_of_scripts, weighted_share, weights
from slurm_gpumem.estimators.allocator.allocator import CachingAllocator
from slurm_gpumem.estimators.allocator.allocator_settings import DEFAULTS
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.remembered import request_of_script
from slurm_gpumem.estimators.traced.replay import StreamPools, allocator_events, further_step, replay
from slurm_gpumem.estimators.types import Gpu
from slurm_gpumem.summaries.reader import parse
from slurm_gpumem.summaries.trace_types import Trace
from slurm_gpumem.units import MIB


class Mark(NamedTuple):
    """The end of a phase of training, and the most MiB that the process had until then."""

    phase: str
    step: int
    peak: int


Judged = Sequence[Tuple[Optional[int], Sequence[Mark]]]
"""The peak when it counted as steady, None where it never did, and all marks; the last has the most."""


def marks_of(trace: Trace, gpu: Gpu) -> List[Mark]:
    """A trace's marks; the last one is after it, when more steps like its last one reserve no more."""
    context = gpu.context_for(conv=trace.uses_conv, matmul=trace.uses_matmul)
    trace = trace._replace(benchmark=False)
    by_stream = any(site.stream for site in trace.sites)
    allocator = StreamPools(DEFAULTS, trace, further_step(trace) or ()) if by_stream else CachingAllocator()
    events, begin, marks = allocator_events(trace, None, gpu), 0, [Mark("setup", 0, context)]
    for phase, end in zip(trace.phases, [phase.event for phase in trace.phases[1:]] + [len(events)]):
        for cut in sorted({cut for cut in trace.emptied if begin < cut < end} | {end}):
            if begin in trace.emptied:
                allocator.give_back()
            allocator.replay(events[begin:cut])
            begin = cut
        marks.append(Mark(phase.name, phase.step, allocator.stats().peak_reserved // MIB + context))
    last = max(marks[-1].peak, replay(trace, gpu=gpu).stats.peak_reserved // MIB + context)
    return [*marks, Mark("later", marks[-1].step + 1, last)]


def steady(marks: Sequence[Mark], steps: int, more: float = 0, epoch: bool = False) -> Optional[int]:
    """The peak once it did not grow for `steps` steps and `more` times those until it last grew, or (`epoch`)
    where the first evaluation begins after one step without growth. None: that never was."""
    last = peak = 0
    evaluation = first_evaluation(marks) if epoch else None
    for at, (_, step, mib) in enumerate(marks):
        calm = step - 1 - last
        if last and (calm >= max(steps, more * last) or (at == evaluation and calm >= 1)):
            return peak
        if step and mib > peak:
            last = step
        peak = max(peak, mib)
    return None


def first_evaluation(marks: Sequence[Mark]) -> Optional[int]:
    """The first mark of an evaluation after a training step; not where each step has one, as rollouts do."""
    steps = {one.step for one in marks if one.phase == "evaluate"}
    late = (at for at, (phase, step, _) in enumerate(marks) if phase == "evaluate" and step > 1)
    return next((at for at in late if marks[at].step - 1 not in steps), None)


def beyond(peak: int, marks: Sequence[Mark]) -> str:
    """The phase that first needs more than the other tasks get; "" for none."""
    limit = request_of_script([peak])
    return next((mark.phase for mark in marks if mark.peak > limit), "")


def row(words: str, judged: Judged) -> str:
    """A rule's line."""
    pairs = [(peak, marks) for peak, marks in judged if peak is not None]
    grown = [marks[-1].peak / peak - 1 for peak, marks in pairs if marks[-1].peak > peak] or [0.0]
    count, past = max(len(pairs), 1), sum(bool(beyond(*pair)) for pair in pairs)
    figures = f"{median(grown):>8.1%}{max(grown):>9.0%}{past:>6}{past / count:>8.1%}"
    return f"{words:<46}{len(pairs):>8}{sum(map(bool, grown)) / count:>12.1%}{figures}"


def lines() -> Iterator[str]:
    """The whole text."""
    gpu, found, saves, needs = find_gpu("h200"), {}, {}, {}
    for one in load([name for name in LISTS if (SCRIPT_ROWS / f"{name}.jsonl.xz").exists()], later=True):
        public = "/" in one["repository"] and not one["repository"].startswith("own/")
        trace = parse(one["trace"], origin=one["name"]).trace if public and "trace" in one else None
        if trace is None or not any(phase.name == "backward" for phase in trace.phases):
            continue
        marks = found[one["name"]] = marks_of(trace, gpu)
        saves[one["name"]] = "checkpoint" in one["trace_facts"]["phases"]
        if one.get("process_bytes") and not trace.benchmark:
            needs[one["name"]] = measured_need(one, marks[0].peak)
    yield f"{'steady is':<46}{'scripts':>8}{'grew later':>12}{'median':>8}{'largest':>9}{'beyond 20 %':>14}"
    for steps, more in ((2, 0), (5, 0), (20, 0), (100, 0), (5, 1), (5, 3)):
        yield row(f"{steps} steps, f = {more}", [(steady(of, steps, more), of) for of in found.values()])
    epoch = {name: (steady(of, 5, epoch=True), of) for name, of in found.items()}
    seen = {name: of[at].step for name, of in found.items() if (at := first_evaluation(of)) is not None}
    yield row("5 steps in the first epoch", list(epoch.values()))
    yield row("... evaluation seen", [epoch[name] for name in seen])
    yield row("... checkpoint only", [epoch[name] for name in found if name not in seen and saves[name]])
    yield row("... none of both", [epoch[name] for name in found if name not in seen and not saves[name]])
    over = [(max(m.peak for m in found[name] if m.step <= step), found[name]) for name, step in seen.items()]
    yield row("the first evaluation and its step are over", over)
    setup = [(max(mark.peak for mark in of if not mark.step), of) for of in found.values()]
    yield row("weights are on the GPU, no step yet", setup)
    past = {name: beyond(peak, of) for name, (peak, of) in epoch.items() if peak is not None}
    yield f"5 steps in the first epoch, beyond 20 % first in: {dict(Counter(filter(None, past.values())))}"
    of = strata_of_scripts()
    weighed = [(part, bool(past[name])) for part, name in weights(sorted({*past} & {*of}), of.__getitem__)]
    yield f"... weighted by how common changes are, {len(weighed)} scripts: {weighted_share(weighed):.1%}"
    run = {name: needs[name] > request_of_script([epoch[name][0] or 0]) for name in past if name in needs}
    both = Counter((bool(past[name]), real) for name, real in run.items())
    yield f"... {len(run)} run on an H200 (no cudnn.benchmark): beyond by trace and run {both[True, True]},"
    yield f"    by the trace {both[True, False]}, by the run (or the trace is wrong) {both[False, True]}"
    # Runs of a few training steps with equal batches: what PyTorch really reserved.
    files = sorted(DATA.glob("*/rows*.jsonl.gz"))
    rows = [one for path in files for one in read_rows(path) if one.get("reserved_by_step_mib")]
    kept = [(one["context_bytes"] // MIB, one["reserved_by_step_mib"]) for one in rows if not disturbed(one)]
    runs = [[Mark("step", n, c + most) for n, most in enumerate(accumulate(r, max), 1)] for c, r in kept]
    for steps in (1, 2, 3):
        yield row(f"measured runs of equal steps: {steps} steps", [(steady(of, steps), of) for of in runs])
    times = sorted(one["step_seconds"] for one in rows if one.get("step_seconds"))
    yield f"a step took {median(times):.2f} s, one in a hundred {times[int(0.99 * len(times))]:.1f} s or more"


if __name__ == "__main__":
    raise SystemExit(print_lines(lines))
