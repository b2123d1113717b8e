"""A site's job records as what `gpumem learn` learns from: estimated against measured, one entry a job."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.accounting.reading import BadRecordError, Run, parse_record, recipe_of, rest_of, run_from
from slurm_gpumem.estimators.site_fit import SiteRun
from slurm_gpumem.estimators.site_layer import SUFFIX

_WHOLE = ("COMPLETED", "TIMEOUT")
"""Ends of a job that has shown what it needs; other ends may have come before its peak."""
_LEAST_SAMPLES = 3
"""A run with fewer samples may have had its peak missed."""


class LearnableRuns(NamedTuple):
    """What the records hold."""

    runs: List[SiteRun]
    records: int
    left_out: Mapping[str, int]
    """Why records were not used, and how many."""


def read_runs(
    folders: Iterable[str], estimator: str, progress: Optional[Callable[[int], None]] = None
) -> LearnableRuns:
    """All jobs that `estimator` estimated and a node measured; of a job's runs the most informative one."""
    left_out: Dict[str, int] = {}
    by_job: Dict[Tuple[str, int], SiteRun] = {}
    records = 0
    for data, uid in _records(folders):
        records += 1
        if progress is not None:
            progress(records)
        try:
            table = parse_record(data)
            run = run_from(table, uid)
            learned = _site_run(run, table, estimator)
        except BadRecordError as error:
            left_out[str(error)] = left_out.get(str(error), 0) + 1
            continue
        if isinstance(learned, str):
            left_out[learned] = left_out.get(learned, 0) + 1
            continue
        job = (run.cluster, run.job_id)
        before = by_job.get(job)
        # A run that showed its whole need says more than one that only says "more than this".
        if before is None or (before.censored, -before.took_mib) > (learned.censored, -learned.took_mib):
            by_job[job] = learned
    return LearnableRuns(list(by_job.values()), records, left_out)


def _site_run(run: Run, table: Mapping[str, Any], estimator: str) -> Any:
    """The entry of a run, or why there is none."""
    claim = table.get("claimed")
    claims: Mapping[str, Any] = claim if isinstance(claim, dict) else {}
    if run.end is None:
        return "still running"
    if run.estimator not in (estimator, estimator + SUFFIX):
        return f"not estimated by {estimator}"
    peak, request = run.estimate_mib, run.request_mib
    if run.estimator != estimator:
        peak, request = _base(claims.get("base"))
    fingerprint = recipe_of(run.recipe).fingerprint
    if not peak or not request or not fingerprint:
        return "without an estimate or the model's fingerprint"
    if run.gpus != 1:
        return "on several GPUs"
    user, gpu = str(run.uid), run.gpu
    if run.oom:
        if not run.limit_mib:
            return "out of memory without a limit"
        return SiteRun(fingerprint, user, gpu, peak, request, run.limit_mib, True)
    samples = rest_of(run.rest).samples
    if not run.own_peak_mib or not samples.isdigit() or int(samples) < _LEAST_SAMPLES:
        return "not measured, or too briefly"
    censored = run.own_state not in _WHOLE
    return SiteRun(fingerprint, user, gpu, peak, request, run.own_peak_mib, censored)


def _base(text: Any) -> Tuple[Optional[int], Optional[int]]:
    """Peak and request before a site's layer, as the record keeps them: "12045+16012"."""
    words = text.split("+") if isinstance(text, str) else []
    if len(words) == 2 and all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        return int(words[0]), int(words[1])
    return None, None


def _records(folders: Iterable[str]) -> Iterator[Tuple[bytes, Optional[int]]]:
    """Every record in these folders and one level below, and who wrote it if neither root nor we did."""
    trusted = (0, os.geteuid())
    for folder in dict.fromkeys(folders):
        for path in _files(folder, below=True):
            try:
                with open(path, "rb") as file:
                    owner = os.fstat(file.fileno()).st_uid
                    uid = None if owner in trusted else owner
                    if path.endswith(".jsonl"):
                        for line in file:
                            yield line, uid
                    else:
                        yield file.read(), uid
            except OSError:
                continue  # another user's, or gone since: `gpumem report` counts the same way


def _files(folder: str, *, below: bool) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith((".json", ".jsonl")) and entry.is_file(follow_symlinks=False):
            yield entry.path
        elif below and not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path, below=False)
