"""The sums of a summary, each as SQL over the rows of `job`."""

from __future__ import annotations

from typing import Tuple

from slurm_gpumem.accounting.index.schema import (
    COMPLETED_WORD,
    FAILED_WORD,
    OBSERVED_WORD,
    REMEMBERED_WORD,
    RUNNING_WORD,
    SHARED_WORD,
)

_RUN = "(end - start) * gpus"
_GRANTED = "CASE WHEN shards > 0 THEN limit_mib ELSE gpu_mib END"
_WASTE = f"max(0, {_GRANTED} - own_peak_mib) * {_RUN}"

_FAILED = f"(oom OR state = {FAILED_WORD})"
_CPUS_KNOWN = "cpus IS NOT NULL AND cpus_mean IS NOT NULL"

_RUN_NUMBER = "job_id * 1000 + restarts"
"""A run on several nodes has a row for each, and counts once."""

_WORK = f"end IS NOT NULL AND NOT redone AND NOT {_FAILED}"
"""Runs that exclusive use would have had, too: their time can be compared."""

FACTS: Tuple[Tuple[str, str], ...] = (
    ("jobs", "sum(head)"),
    ("estimated", "count(error_pm)"),
    ("under_estimate", "sum(head AND (ooms > 0 OR (judged AND peak_mib > estimate_mib)))"),
    ("under_request", "sum(head AND (ooms > 0 OR (judged AND peak_mib > request_mib)))"),
    ("remembered", f"sum(head AND estimator = {REMEMBERED_WORD})"),
    ("shared", f"sum(head AND sharing = {SHARED_WORD})"),
    ("observed", f"sum(head AND sharing = {OBSERVED_WORD})"),
    ("gpu_s", f"sum({_RUN})"),
    ("used_s", "sum(used_s)"),
    ("alone_s", f"sum(CASE WHEN {_WORK} THEN alone_s END)"),
    ("alone_used_s", f"sum(CASE WHEN {_WORK} AND alone_s IS NOT NULL THEN used_s END)"),
    ("alone_run_s", f"sum(CASE WHEN {_WORK} AND alone_s IS NOT NULL THEN {_RUN} END)"),
    ("alone_unknown", f"sum({_WORK} AND alone_s IS NULL)"),
    ("alone_seen", f"sum({_WORK} AND alone_s IS NOT NULL AND guessed = 0)"),
    ("alone_guessed", f"sum({_WORK} AND alone_s IS NOT NULL AND guessed = 1)"),
    ("redone", f"count(DISTINCT CASE WHEN redone THEN {_RUN_NUMBER} END)"),
    ("redone_s", "sum(CASE WHEN redone THEN used_s END)"),
    (
        "failed_runs",
        f"count(DISTINCT CASE WHEN end IS NOT NULL AND NOT redone AND {_FAILED} THEN {_RUN_NUMBER} END)",
    ),
    ("failed_s", f"sum(CASE WHEN NOT redone AND {_FAILED} THEN used_s END)"),
    ("strangers", "sum(strangers)"),
    ("would_s", "sum(would_s)"),
    ("would_of_s", f"sum(CASE WHEN would_s IS NOT NULL THEN {_RUN} END)"),
    ("ooms", "sum(head * ooms)"),
    ("oom_recovered", f"sum(head AND ooms > 0 AND state = {COMPLETED_WORD})"),
    ("oom_lost", f"sum(head AND ooms > 0 AND state NOT IN ({COMPLETED_WORD}, {RUNNING_WORD}))"),
    (
        "oom_avoided",
        f"sum(judged AND ooms = 0 AND sharing = {SHARED_WORD} AND peak_mib > estimate_mib "
        "AND peak_mib <= limit_mib)",
    ),
    ("failed", f"sum(head AND state = {FAILED_WORD})"),
    ("energy_j", "sum(energy_j)"),
    ("idle_energy_j", "sum(idle_energy_j)"),
    ("idle_s", "sum(idle_s)"),
    ("cpu_held_s", f"sum(CASE WHEN {_CPUS_KNOWN} THEN cpus * (end - start) END)"),
    ("cpu_used_s", f"sum(CASE WHEN {_CPUS_KNOWN} THEN cpus_mean * (end - start) END)"),
    ("energy_jobs", "sum(head AND energy_j IS NOT NULL)"),
    ("granted_mib_s", f"sum(CASE WHEN own_peak_mib IS NOT NULL THEN ({_GRANTED}) * {_RUN} END)"),
    ("wasted_mib_s", f"sum({_WASTE})"),
    ("wait_s", "sum(wait_s)"),
    ("wait_jobs", "count(wait_s)"),
    ("sm_s", f"sum(sm_share * {_RUN})"),
    ("sm_gpu_s", f"sum(CASE WHEN sm_share IS NOT NULL THEN {_RUN} END)"),
    ("sm_used_s", "sum(CASE WHEN sm_share IS NOT NULL THEN used_s END)"),
)
"""(name, aggregate). Running jobs have no end, and so add nothing to sums over time."""

WORST = f"max({_WASTE})"
"""The worst single job; beside a lone max() SQLite gives the job_id of the same row."""


def sums_of_jobs() -> str:
    """The columns of a summary over rows of `job`."""
    return ", ".join([*(f"coalesce({sql}, 0)" for _, sql in FACTS), WORST, "job_id"])
