"""Fit what the request of an unfinished trace is multiplied by: `python -m lab.fit.unfinished`.

The traces of the lists of scripts (lab/data/scripts) are cut short on purpose: after the third step, before
any evaluation, checkpoint or later stage. The factor is that of requests, without the context, with which
half of those that are below what the script took on the GPU are enough. No factor is enough for all: some
scripts need many times what their first steps do. Writes models/fitted/unfinished.json.
"""

from __future__ import annotations

import json
from statistics import median
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional

from lab.places import FITTED
from lab.scripts.lists import LISTS
from lab.scripts.score import judge, load, measured_need
from slurm_gpumem.estimators import gpus, margin, registry
from slurm_gpumem.estimators.training_job import StatedTraining, training_job
from slurm_gpumem.summaries.parsers.own import parse
from slurm_gpumem.summaries.trace_types import Trace
from slurm_gpumem.summaries.types import ModelSummary

GPU = "h200"
STEPS = 3
FORMAT = "gpumem-unfinished/1"
Row = Dict[str, Any]
_MANY = "its batches have many shapes"


class Cut(NamedTuple):
    """A script whose trace was cut short; MiB without context."""

    name: str
    need: int
    request: int

    @property
    def short(self) -> float:
        """By how much the request is too small."""
        return self.need / self.request


def cut_short(trace: Trace) -> Trace:
    """The trace up to its third step, and nothing after that."""
    later = [phase.event for phase in trace.phases if phase.step > STEPS or phase.name == "evaluate"]
    first_step = min((phase.event for phase in trace.phases if phase.step == 1), default=0)
    end = min((event for event in later if event > first_step), default=len(trace.events))
    phases = tuple(phase for phase in trace.phases if phase.event < end)
    return trace._replace(events=trace.events[:end], phases=phases, finished=False, kernels=())


def cuts() -> List[Cut]:
    """Every training of the lists that was traced and ran, its trace cut short."""

    def short(row: Row, summary: ModelSummary, trace: Trace) -> Optional[ModelSummary]:
        trains = row["trace_facts"].get("kind", "training") == "training"
        return summary._replace(trace=cut_short(trace)) if trains else None

    return _requested(LISTS, short)


def varied() -> List[Cut]:
    """Scripts whose batches have many shapes, and which were followed to their end; their margin is a
    constant of the estimator. The eighth and later lists judge it."""

    def plain(row: Row, summary: ModelSummary, trace: Trace) -> Optional[ModelSummary]:
        many = _MANY in row["trace"] and not trace.unfinished
        return summary._replace(trace=trace._replace(varied=False)) if many else None

    return _requested([name for name in LISTS if name not in ("eighth", "ninth")], plain)


def _requested(
    lists: Iterable[str], change: Callable[[Row, ModelSummary, Trace], Optional[ModelSummary]]
) -> List[Cut]:
    """What scripts of these lists ask for with a changed summary; those without one are left out."""
    gpu = gpus.find_gpu(GPU)
    found = []
    for name in lists:
        rows = load([name])
        judged = {one.name for one in judge(rows, GPU).judged}
        for row in rows:
            summary = parse(row["trace"], origin="row") if row["name"] in judged else None
            changed = change(row, summary, summary.trace) if summary and summary.trace else None
            if changed is None:
                continue
            made = registry.run("auto", changed, training_job(changed, StatedTraining()), gpu)
            context = made.parts["context"]
            need = measured_need(row, context)
            found.append(Cut(f"{name}/{row['name']}", need - context, made.request_mib - context))
    return found


def main() -> None:
    """Fit and write."""
    found = sorted(cuts(), key=lambda one: one.short)
    below = [one for one in found if one.short > 1]
    factor = round(median(one.short for one in below), 1)
    (FITTED / margin.UNFINISHED).write_text(json.dumps({"format": FORMAT, "factor": factor}) + "\n")
    for one in below:
        print(f"{one.name:<40} needs {one.short:.2f} times the request of its first {STEPS} steps")
    wide = sum(one.request * factor for one in found) / sum(one.need for one in found)
    still = sum(one.short > factor for one in found)
    print(
        f"{len(found)} traces cut after step {STEPS}: {len(below)} below need; times {factor}: {still}, "
        f"sum of requests / sum of needs {wide:.2f}"
    )
    many = varied()
    worst = max(many, key=lambda one: one.short)
    below = [one for one in many if one.short > 1]
    print(
        f"{len(many)} with batches of many shapes: {len(below)} below need, at most {worst.short:.2f} times"
    )


if __name__ == "__main__":
    main()
