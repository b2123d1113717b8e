"""A site's job records as what `gpumem learn` learns from: estimated against measured, one entry a job."""

from __future__ import annotations

import os
from typing import Callable, Dict, Iterable, Iterator, NamedTuple, Optional, Sequence, Tuple, Union

from slurm_gpumem.accounting.record_files import (
    RecordFolder,
    complete_lines,
    open_book,
    read_record_file,
    record_folders,
)
from slurm_gpumem.accounting.rows import LEAST_SAMPLES, run_from
from slurm_gpumem.accounting.types import JUDGED_STATES
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.types import SITE_SUFFIX
from slurm_gpumem.formats.comment import sizes_of
from slurm_gpumem.formats.gpu_names import profile_name
from slurm_gpumem.formats.job_record import BadRecordError, JobRecord, parse_job_record

_FARTHEST = 20
"""A job that took this many times its estimate, or that part of it, is another job than the estimate's."""


class SiteRun(NamedTuple):
    """One job whose need is known."""

    user: str
    gpu: str
    fingerprint: str
    beyond_mib: int
    """What it took beyond its estimate: the one without a site's constant, with the context of jobs that say
    nothing of theirs."""
    cut_short: bool
    """It ran out of memory, failed or was cancelled, and had taken more than its estimate by then."""


class LearnableRuns(NamedTuple):
    """What the records hold."""

    runs: Sequence[SiteRun]
    records: int
    left_out: Dict[str, int]
    """Why records were not used, and how many."""


def read_runs(folders: Iterable[str], progress: Optional[Callable[[int], None]] = None) -> LearnableRuns:
    """Jobs that were estimated and that a node measured; of a job's runs the most informative."""
    left_out: Dict[str, int] = {}
    by_job: Dict[Tuple[str, int, str], SiteRun] = {}
    records = 0
    for data in _records(folders):
        records += 1
        if progress is not None:
            progress(records)
        try:
            record = parse_job_record(data)
        except BadRecordError as error:
            left_out[str(error)] = left_out.get(str(error), 0) + 1
            continue
        run = _site_run(record)
        if isinstance(run, str):
            left_out[run] = left_out.get(run, 0) + 1
            continue
        # The user belongs to the key: nobody's record takes the place of another user's.
        job = (record.cluster, record.job_id, run.user)
        before = by_job.get(job)
        # A run that showed its whole need says more than one that only says "more than this".
        if before is None or (before.cut_short, -before.beyond_mib) > (run.cut_short, -run.beyond_mib):
            by_job[job] = run
    return LearnableRuns(list(by_job.values()), records, left_out)


def _site_run(record: JobRecord) -> Union[SiteRun, str]:
    """The entry of a run, or why there is none."""
    claim, measured = record.claimed, record.measured
    if record.end is None:
        return "still running"
    if not registry.has_layer(claim.estimator):
        return f"not estimated by {' or '.join(registry.LEARNT)}"
    base = sizes_of(claim.base)
    # Before what the environment, another coverage or the site's constant made of it.
    peak = base[0] if len(base) == 2 else claim.estimate_mib
    if len(base) != 2 and claim.estimator.endswith(SITE_SUFFIX):
        peak = None
    if not peak or not claim.fingerprint:
        return "without an estimate or the model's fingerprint"
    run = run_from(record)
    if profile_name(run.gpu):
        return "on a MIG instance"
    if run.gpus != 1:
        return "on several GPUs"
    took = measured.limit_mib if record.out_of_memory else run.own_peak_mib
    if not took or (not record.out_of_memory and measured.samples < LEAST_SAMPLES):
        return "not measured, or too briefly"
    if not 1 / _FARTHEST <= took / peak <= _FARTHEST:
        return "far from their estimate"
    cut_short = record.out_of_memory or record.known_state not in JUDGED_STATES
    if cut_short and took <= peak:
        return "cut short below their estimate"
    return SiteRun(str(record.uid), run.gpu, claim.fingerprint, took - peak, cut_short)


def _records(folders: Iterable[str]) -> Iterator[bytes]:
    """Every record of root's in these folders and one level below."""
    for top in dict.fromkeys(folders):
        for path, owner in (found for folder in record_folders(top) for found in _files(folder)):
            try:
                if path.endswith(".json"):
                    yield read_record_file(path, owner)
                    continue
                book = open_book(path, owner)
            except OSError:
                continue  # another user's, or gone since: `gpumem report` leaves out the same
            with book.file:
                yield from complete_lines(book.file)


def _files(folder: RecordFolder) -> Iterator[Tuple[str, int]]:
    try:
        names = [] if folder.distrusted else sorted(os.listdir(folder.path))
    except OSError:
        return
    yield from (
        (f"{folder.path}/{name}", folder.owner) for name in names if name.endswith((".json", ".jsonl"))
    )
