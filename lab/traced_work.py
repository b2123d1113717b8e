"""What traces of the measured jobs tell of a step, kept so that fitting and scoring need no tracing.

lab/data/traces/kernels.jsonl.xz has one line a job: its key, how it was traced, and its kernels with the
sizes of that job's batch. `python -m lab.score.trace_kernels` writes it.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence

from lab.places import TRACE_KERNELS
from lab.rows import open_text, read_rows
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.trace_types import DTYPES, KERNELS, PHASES, Kernel, Trace, TracedJob, evaluate
from slurm_gpumem.utilization.model import TextQuality
from slurm_gpumem.utilization.predict import trace_quality, work_of_trace
from slurm_gpumem.utilization.work import StepWork


class TracedWork(NamedTuple):
    """A measured job as its trace has it."""

    key: str
    seen: TextQuality
    work: StepWork


def line_of(key: str, trace: Trace, job: TrainingJob, params: int) -> str:
    """A job's line of the file."""
    rows: List[List[int]] = []
    for kernel in trace.kernels:
        names = [KERNELS.index(kernel.kind), PHASES.index(kernel.phase), DTYPES.index(kernel.dtype)]
        sizes = [evaluate(size, job.batch_size) for size in (kernel.bytes, *kernel.sizes)]
        rows.append([*names, kernel.times, *sizes])
    content = {
        "key": key,
        "way": trace.way,
        "scalable": trace.scalable,
        "batch": job.batch_size,
        "accumulation": trace.job.grad_accumulation,
        "params": params,
        "kernels": rows,
    }
    return json.dumps(content, separators=(",", ":")) + "\n"


def write_traced(lines: Iterable[str], path: Path) -> None:
    """Write the file again, in order of keys."""
    path.write_bytes(lzma.compress("".join(sorted(lines)).encode(), preset=9))


def kept_lines(path: Path) -> Dict[str, str]:
    """The file's lines by key; none where there is no file."""
    if not path.exists():
        return {}
    with open_text(path) as file:
        return {json.loads(line)["key"]: line for line in file}


def load_traced(jobs: Sequence[Any], path: Optional[Path] = None) -> Dict[str, TracedWork]:
    """By key, of those of `jobs` (with `key` and `job`) that were traced."""
    wanted = {one.key: one.job for one in jobs}
    rows = (row for row in read_rows(TRACE_KERNELS if path is None else path) if row["key"] in wanted)
    return {row["key"]: _traced(row, wanted[row["key"]]) for row in rows}


def _traced(row: Dict[str, Any], job: TrainingJob) -> TracedWork:
    kernels = tuple(
        Kernel(
            KERNELS[kind],
            PHASES[phase],
            DTYPES[dtype],
            tuple((size,) for size in sizes),
            (moved,),
            count,
        )
        for kind, phase, dtype, count, moved, *sizes in row["kernels"]
    )
    traced = TracedJob(row["batch"], grad_accumulation=row["accumulation"])
    trace = Trace(traced, row["way"], (), (), (), scalable=row["scalable"], kernels=kernels)
    work = work_of_trace(trace, job, row["params"] * job.weight_bytes)
    return TracedWork(row["key"], trace_quality(trace), work)
