"""The page's figures in words: the tiles at its top, what its charts say, what it is based on."""

from __future__ import annotations

from typing import Dict, List, Tuple

from slurm_gpumem.accounting.types import JobTotals
from slurm_gpumem.report.html.types import Gathered, PageSource
from slurm_gpumem.text import count
from slurm_gpumem.units import energy, hours, percent


def tiles(total: JobTotals) -> List[Tuple[str, str, str]]:
    """The figures that a meeting asks for first: (title, figure, what it says)."""
    found: List[Tuple[str, str, str]] = []
    if total.shared and total.gpu_s and total.used_s:
        words = f"for {hours(total.gpu_s)} of run time; time alone not known"
        if total.saved is not None:
            words = f"{percent(total.saved)} less than {hours(total.alone_s)} alone"
        found.append(("GPU-hours", hours(total.used_s), words))
        words = f"{total.shared:,} of {count(total.jobs, 'job')} asked for a share"
        found.append(("Jobs per GPU", f"{total.jobs_per_gpu or 0:.1f}", words))
    elif total.gpu_s:
        how = "none shared" if total.used_s is not None else "of run time; some beside other users' jobs"
        found.append(("GPU-hours", hours(total.gpu_s), f"{count(total.jobs, 'job')}, {how}"))
    if total.would_of_s:
        saved = 1 - total.would_s / total.would_of_s
        found.append(
            (
                "Sharing would take",
                hours(total.would_s),
                f"of {hours(total.would_of_s)} GPU-hours: {percent(saved)} less",
            )
        )
    if total.estimated:
        within = f"95% of {count(total.estimated, 'estimate')} within {percent(total.p95_error)}"
        found.append(("Median error", percent(total.median_error), within))
        part = (
            f"{percent(total.under_request / total.estimated, digits=1)} of jobs"
            if total.under_request
            else "no job"
        )
        found.append(
            ("Above need", f"{total.under_request:,}", f"{part} took more than estimated with the reserve")
        )
    held = f"in {count(total.oom_avoided, 'job')} the reserve held" if total.oom_avoided else ""
    met = f"{total.oom_recovered:,} recovered, {total.oom_lost:,} lost" if total.ooms else "none met"
    found.append(("Out of memory", f"{total.ooms:,}", "; ".join(filter(None, (met, held)))))
    if total.unused is not None:
        found.append(("Memory unused", percent(total.unused), "of what was granted was never needed"))
    if total.energy_jobs:
        found.append(
            (
                "Energy per job",
                energy(total.energy_j / total.energy_jobs),
                f"mean of {count(total.energy_jobs, 'job')}",
            )
        )
    return found


def facts(source: PageSource, gathered: Gathered) -> Dict[str, str]:
    """What the charts say, for whoever cannot see them, by the id that the script looks for."""
    errors, total, kinds = gathered.errors, source.total, gathered.scatter["kinds"]
    return {
        "about-scatter": f"{count(gathered.scatter['jobs'], 'job')} with an estimate and a measured peak: "
        f"{kinds[0]:,} stayed within their need, {kinds[1]:,} went above it, "
        f"{kinds[2]:,} ran out of memory.",
        "about-errors": f"Median error {percent(errors['median'], sign=True) or 'unknown'}; "
        f"{total.under_estimate:,} of {total.estimated:,} estimates were below the peak.",
    }


def notes(source: PageSource) -> List[str]:
    """What the page is based on, and what is missing."""
    fresh = source.freshness
    found = []
    if fresh is not None:
        if not fresh.everybody:
            found.append("Only the jobs of the user who made this page are in it.")
        elif not source.personal and not source.names:
            found.append("Users are numbered by their GPU-hours; --names shows their names.")
        if fresh.slurm:
            found.append(f"Without Slurm's own accounting: {fresh.slurm}")
        if fresh.bad:
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in fresh.bad_reasons.items())
            found.append(
                f"{count(fresh.bad, 'record')} of {fresh.records + fresh.bad:,} could not be used: {reasons}"
            )
    found.append(
        "SM activity and energy of a shared GPU are split evenly over the jobs that hold memory of it."
    )
    return found
