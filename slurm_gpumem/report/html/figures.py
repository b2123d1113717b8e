"""The page's figures in words: the tiles at its top, what its charts say, what it stands on."""

from __future__ import annotations

from typing import List, Sequence, Tuple

from slurm_gpumem.accounting.types import Summary
from slurm_gpumem.report.html.text import count, energy, escaped, hours, percent
from slurm_gpumem.report.html.types import Gathered, PageSource


def tiles(total: Summary) -> str:
    """The figures that a meeting asks for first: (title, figure, what it says)."""
    found: List[Tuple[str, str, str]] = []
    if total.shared and total.gpu_s and total.used_s:
        saved = 1 - total.used_s / total.gpu_s
        words = f"instead of {hours(total.gpu_s)} alone: {percent(saved)} saved"
        found.append(("GPU-hours", hours(total.used_s), words))
        words = f"{total.shared:,} of {count(total.jobs, 'job')} shared"
        found.append(("Jobs per GPU", f"{total.jobs_per_gpu or 0:.1f}", words))
    elif total.gpu_s:
        found.append(("GPU-hours", hours(total.gpu_s), f"{count(total.jobs, 'job')}, none shared"))
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
        within = f"95 % of {count(total.estimated, 'estimate')} within {percent(total.p95_error)}"
        found.append(("Median error", percent(total.median_error), within))
        part = (
            f"{total.under_request / total.estimated * 100:.1f} % of jobs"
            if total.under_request
            else "no job"
        )
        found.append(("Above request", f"{total.under_request:,}", f"{part} needed more than was asked for"))
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
    return "\n".join(
        f"<div class=tile><dt>{escaped(title)}</dt>"
        f"<dd><b>{escaped(figure)}</b><span>{escaped(words, 120)}</span></dd></div>"
        for title, figure, words in found
    )


def facts(source: PageSource, gathered: Gathered) -> str:
    """What the charts say, for whoever cannot see them; the script moves it to them."""
    errors, total, kinds = gathered.errors, source.total, gathered.scatter["kinds"]
    lines = {
        "about-scatter": f"{count(gathered.scatter['jobs'], 'job')} with an estimate and a measured peak: "
        f"{kinds[0]:,} stayed within their request, {kinds[1]:,} went above it, "
        f"{kinds[2]:,} ran out of memory.",
        "about-errors": f"Median error {percent(errors['median'], sign=True) or 'unknown'}; "
        f"{total.under_estimate:,} of {total.estimated:,} estimates were below the peak.",
    }
    return "".join(f'<p id="{name}" class=unseen>{escaped(text, 400)}</p>' for name, text in lines.items())


def wasters(source: PageSource) -> str:
    """Who keeps the most memory from others, as a list."""
    if not source.wasters:
        return ""
    lines = []
    for one in source.wasters:
        part = percent(one.wasted_mib_s / one.granted_mib_s) if one.granted_mib_s else ""
        lines.append(
            f"<li><b>{escaped(one.user)}</b> {one.wasted_mib_s / 1024 / 3600:,.1f} GiB-hours unused"
            f"{f', {escaped(part)} of what was granted' if part else ''} "
            f"<span class=dim>in {escaped(count(one.jobs, 'job'))}; most by job {one.worst_job}</span></li>"
        )
    return f"<section><h2>Most memory kept from others</h2><ol class=wasters>{''.join(lines)}</ol></section>"


def notes(source: PageSource) -> str:
    """What the page stands on, and what is missing."""
    return "".join(f"<li>{escaped(note, 300)}</li>" for note in _what_it_stands_on(source))


def _what_it_stands_on(source: PageSource) -> Sequence[str]:
    fresh = source.freshness
    notes = []
    if fresh is not None:
        if not fresh.everybody:
            notes.append("Only the jobs of the user who made this page are in it.")
        if fresh.slurm:
            notes.append(f"Without Slurm's own accounting: {fresh.slurm}")
        if fresh.bad:
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in fresh.bad_reasons.items())
            notes.append(
                f"{count(fresh.bad, 'record')} of {fresh.records + fresh.bad:,} could not be used: {reasons}"
            )
    notes.append(
        "SM activity and energy of a shared GPU are split evenly over the jobs that hold memory of it."
    )
    return notes
