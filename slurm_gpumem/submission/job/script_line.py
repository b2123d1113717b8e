"""The memory line of a model, made for a job script and put into one: then plain sbatch shares a GPU."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Callable, Optional

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.make_line import SPAN, make_line
from slurm_gpumem.estimators.memory_line import MemoryLine, job_words
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.files import replaced
from slurm_gpumem.slurm.submit.script import MARK, MEMORY_LINE, BatchScript, check_script, read_script
from slurm_gpumem.summaries.types import ModelSummary


def line_for(
    summary: ModelSummary,
    job: TrainingJob,
    estimator: str,
    coverage: Optional[float] = None,
    progress: Optional[Callable[[int], None]] = None,
) -> MemoryLine:
    """The memory line of a job at a coverage; `progress` gets the number of estimated batch sizes."""
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


def changed_since(
    line: MemoryLine,
    batch: int,
    summary: ModelSummary,
    job: TrainingJob,
    made: Callable[[TrainingJob], MemoryLine],
) -> Optional[str]:
    """Why a script's memory line does not hold for this model and job any more; None where it does.

    `batch` is what sbatch would evaluate it for; `made` makes the line of a job.
    """
    again = "write it again with gpumem estimate --directive --write"
    first, last = line.knots[0].batch, line.knots[-1].batch
    trace = summary.trace
    if line.fingerprint != summary.fingerprint:
        return f"the model's summary has changed since its memory line was written; {again}"
    if line.job != job_words(job):
        return f"its memory line is for {line.job}, and the job is {job_words(job)}; {again}"
    if not first <= batch <= last:
        return f"its memory line is for batches of {first} to {last}, and the job's is {batch}; {again}"
    if trace is not None and not trace.scalable and trace.job.batch != line.batch:
        return f"its memory line is for batch {line.batch}, and the trace for {trace.job.batch} only; {again}"
    new = made(job._replace(batch_size=line.batch))
    if new.estimator != line.estimator:
        return f"its memory line was estimated by {line.estimator}, now {new.estimator} answers; {again}"
    if new != line:
        gpu = find_gpu("h200")
        (_, then), (_, now) = line.memory(batch, gpu), new.memory(batch, gpu)
        grew = f" (batch {batch} on {gpu.name}: {now} MiB, not {then})" if now != then else ""
        return f"gpumem gives other figures now than its memory line has{grew}; {again}"
    return None


def with_line(script: BatchScript, line: MemoryLine) -> BatchScript:
    """The script with this line in the place of its old one, else behind its last #SBATCH or #GPUMEM."""
    lines = script.text().split("\n")
    head = [number for number, _ in script.head()]
    old = [n for n in head if _has_line(lines[n - 1])]
    others = [n for n in head if lines[n - 1].startswith(MARK) and n not in old]
    for number in others:
        # One beside other settings: the last one would count, and slurmctld reads 4 KiB of them in all.
        lines[number - 1] = re.sub(rf"\s{MEMORY_LINE}=\S*", "", lines[number - 1])
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


def write_script(script: BatchScript, data: bytes) -> None:
    """Write the script whole, with the group, mode and access list that it had; a link stays one."""
    assert script.path is not None
    path = Path(os.path.realpath(script.path))
    hint = "\nWithout --write the line is printed instead."
    try:
        about = path.stat()
        if not os.access(path, os.W_OK) or about.st_uid != os.geteuid():
            whose = "is read-only" if about.st_uid == os.geteuid() else "belongs to another user"
            raise UsageError(f"{script.name} {whose}, so it stays as it is.{hint}")
        with replaced(path, mode=0o600) as draft:
            draft.write_bytes(data)
            os.chown(draft, -1, about.st_gid)
            shutil.copystat(path, draft)
            os.utime(draft)
            if path.read_bytes() != script.data:
                raise UsageError(f"{script.name} was changed meanwhile, so it stays as it is; try again.")
    except OSError as error:
        raise UsageError(
            f"{script.name}: the memory line cannot be written: {error.strerror}.{hint}"
        ) from None
