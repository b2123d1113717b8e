"""The memory line of a model, made for a job script and put into one: then plain sbatch shares a GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Callable, Optional

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.make_line import SPAN, make_line
from slurm_gpumem.estimators.memory_line import MemoryLine
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.files import write_atomic
from slurm_gpumem.slurm.directives import MARK, MEMORY_LINE
from slurm_gpumem.slurm.script import BatchScript, check_script, read_script
from slurm_gpumem.summaries.types import ModelSummary


def line_for(
    summary: ModelSummary,
    job: TrainingJob,
    estimator: str,
    coverage: Optional[float] = None,
    progress: Optional[Callable[[int], None]] = None,
) -> MemoryLine:
    """The memory line of a job at a coverage; `progress` gets the number of estimated batch sizes."""
    if job.gpus > 1:
        raise UsageError("--directive is for jobs on one GPU; those on several are not shared")
    return make_line(
        summary.fingerprint,
        job,
        lambda other, gpu: registry.run(estimator, summary, other, gpu, coverage),
        progress,
        span=_span(summary, job, estimator),
    )


def _span(summary: ModelSummary, job: TrainingJob, estimator: str) -> int:
    """How far from the job's batch its line may go: a trace that does not scale holds for its own only."""
    trace = summary.trace
    if trace is None or trace.scalable or estimator not in ("auto", registry.TRACE):
        return SPAN
    if job.batch_size != trace.job.batch:
        raise UsageError(
            f"the trace holds for batch size {trace.job.batch} only: trace again with --batch-size "
            f"{job.batch_size}"
        )
    return 1


def open_script(path: str) -> BatchScript:
    """The script that a line is to be written into; it must be one that sbatch takes."""
    script = read_script(path)
    check_script(script)
    if not script.again_readable:
        raise UsageError(f"{path}: is no file that a line can be written into")
    return script


def with_line(script: BatchScript, line: MemoryLine) -> BatchScript:
    """The script with this line in the place of its old one, else behind its last #SBATCH or #GPUMEM."""
    lines = script.text().split("\n")
    head = [number for number, _ in script.head()]
    old = [n for n in head if _has_line(lines[n - 1])]
    others = [n for n in head if lines[n - 1].startswith(MARK) and n not in old]
    has_batch = any("batch-size=" in lines[n - 1] for n in others)
    ending = "\r" if lines[0].endswith("\r") else ""
    text = line.directive(with_batch=not has_batch) + ending
    marked = [n for n in head if lines[n - 1].startswith((MARK, "#SBATCH"))]
    if old:
        lines[old[0] - 1] = text
        for number in reversed(old[1:]):
            del lines[number - 1]
    else:
        lines.insert(marked[-1] if marked else 1, text)
    return script._replace(data="\n".join(lines).encode("utf-8", "surrogateescape"))


def _has_line(text: str) -> bool:
    """Whether it is a line that --directive wrote: nothing but the batch size stands beside the memory."""
    words = text.split()
    keys = {word.partition("=")[0] for word in words[1:]}
    return bool(words) and words[0] == MARK and MEMORY_LINE in keys and keys <= {MEMORY_LINE, "batch-size"}


def write_script(script: BatchScript) -> None:
    """Write the script whole, with the mode it had; a link stays one."""
    assert script.path is not None
    path = Path(os.path.realpath(script.path))
    try:
        write_atomic(path, script.data, mode=path.stat().st_mode & 0o7777)
    except OSError as error:
        raise UsageError(
            f"{script.name}: the memory line cannot be written: {error.strerror}.\n"
            "Without --write it is printed instead."
        ) from None
