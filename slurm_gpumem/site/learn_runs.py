"""A site's job records as what `gpumem learn` learns from: estimated against measured, one entry a job."""

from __future__ import annotations

import os
from typing import (
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from slurm_gpumem.accounting.record_files import (
    RecordFolder,
    complete_lines,
    open_book,
    read_record_file,
    record_folders,
)
from slurm_gpumem.accounting.rows import LEAST_SAMPLES, run_from
from slurm_gpumem.accounting.types import JUDGED_STATES
from slurm_gpumem.estimators.environment import LEAST_CONTEXT_MIB, MOST_CONTEXT_MIB
from slurm_gpumem.estimators.site_contexts import ContextReport
from slurm_gpumem.estimators.site_fit import SiteRun
from slurm_gpumem.estimators.types import SITE_SUFFIX
from slurm_gpumem.formats.comment import sizes_of
from slurm_gpumem.formats.gpu_names import profile_name
from slurm_gpumem.formats.job_record import BadRecordError, JobRecord, parse_job_record


class LearnableRuns(NamedTuple):
    """What the records hold."""

    runs: Mapping[str, List[SiteRun]]
    """By estimator."""
    records: int
    left_out: Mapping[str, int]
    """Why records were not used, and how many."""
    contexts: Sequence[ContextReport] = ()
    """What jobs reported of their CUDA context."""


def read_runs(
    folders: Iterable[str], estimators: Sequence[str], progress: Optional[Callable[[int], None]] = None
) -> LearnableRuns:
    """Jobs that one of `estimators` estimated and a node measured; of a job's runs the most informative."""
    left_out: Dict[str, int] = {}
    by_job: Dict[Tuple[str, str, int, str], SiteRun] = {}
    contexts: List[ContextReport] = []
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
        claimed = record.claimed.estimator
        estimator = claimed[: -len(SITE_SUFFIX)] if claimed.endswith(SITE_SUFFIX) else claimed
        reported = _context_report(record) if estimator in estimators else None
        if reported is not None:
            contexts.append(reported)
        learned = _site_run(record, estimator, estimators)
        if isinstance(learned, str):
            left_out[learned] = left_out.get(learned, 0) + 1
            continue
        # The user belongs to the key: nobody's record takes the place of another user's.
        job = (estimator, record.cluster, record.job_id, learned.user)
        before = by_job.get(job)
        # A run that showed its whole need says more than one that only says "more than this".
        if before is None or (before.censored, -before.took_mib) > (learned.censored, -learned.took_mib):
            by_job[job] = learned
    runs: Dict[str, List[SiteRun]] = {estimator: [] for estimator in estimators}
    for key, learned in by_job.items():
        runs[key[0]].append(learned)
    return LearnableRuns(runs, records, left_out, contexts)


def _context_report(record: JobRecord) -> Optional[ContextReport]:
    """What the job's owner says of its context, as far as it can be true."""
    claim, run = record.claimed, run_from(record)
    reported = _reported_context(record, run.own_peak_mib)
    assumed = claim.part_sizes.get("context")
    if reported is None or assumed is None or claim.estimate_mib is None:
        return None
    most = min(MOST_CONTEXT_MIB, run.own_peak_mib or 0)
    if run.gpus != 1 or not LEAST_CONTEXT_MIB <= reported <= most:
        return None
    base = sizes_of(claim.base)
    moved = claim.estimate_mib - base[0] if len(base) == 2 else 0
    return ContextReport(str(record.uid), run.gpu, reported - assumed + moved)


def _reported_context(record: JobRecord, peak_mib: Optional[int]) -> Optional[int]:
    """As PyTorch's message about memory that ran out says, or what was measured less what PyTorch reserved.

    Few jobs load eagerly: what they report says nothing of the others'.
    """
    if record.context_mib is not None:
        return record.context_mib
    brief = record.measured.samples < LEAST_SAMPLES
    if record.reserved_mib is None or peak_mib is None or brief or record.loading == "eager":
        return None
    return peak_mib - record.reserved_mib


def _site_run(record: JobRecord, estimator: str, estimators: Sequence[str]) -> Union[SiteRun, str]:
    """The entry of a run, or why there is none."""
    claim, measured = record.claimed, record.measured
    if record.end is None:
        return "still running"
    if estimator not in estimators:
        return f"not estimated by {' or '.join(estimators)}"
    peak, request = claim.estimate_mib, claim.request_mib
    came = (0, 0)
    base = sizes_of(claim.base)
    if len(base) == 2:
        # Peak and request before what the environment, another coverage or the site's layer made of them.
        came = (peak or 0, request or 0) if claim.estimator == estimator else came
        peak, request = base
    elif claim.estimator != estimator:
        peak, request = None, None
    if not peak or not request or not claim.fingerprint:
        return "without an estimate or the model's fingerprint"
    run = run_from(record)
    if profile_name(run.gpu):
        return "on a MIG instance"
    if run.gpus != 1:
        return "on several GPUs"
    user, gpu = str(record.uid), run.gpu
    if record.out_of_memory:
        if not measured.limit_mib:
            return "out of memory without a limit"
        return SiteRun(claim.fingerprint, user, gpu, peak, request, measured.limit_mib, True, came)
    if not run.own_peak_mib or measured.samples < LEAST_SAMPLES:
        return "not measured, or too briefly"
    censored = record.known_state not in JUDGED_STATES
    return SiteRun(claim.fingerprint, user, gpu, peak, request, run.own_peak_mib, censored, came)


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
