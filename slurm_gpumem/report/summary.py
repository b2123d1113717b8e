"""`gpumem report --summary`: does it work, what does it save, and who wastes."""

from __future__ import annotations

import csv
import json
from typing import Any, Dict, List, Optional, Sequence, TextIO, Tuple

from slurm_gpumem.accounting.faults import Faults
from slurm_gpumem.accounting.types import JobTotals, Waster
from slurm_gpumem.report.columns import cell, parsable
from slurm_gpumem.text import count, fitted, printable
from slurm_gpumem.units import duration, energy, gpu_hours, hours, percent

SCHEMA = "gpumem-totals/1"
_LABEL, _NAME = 20, 20
_MIB_S_PER_GIB_H = 1024 * 3600


def summary_lines(
    total: JobTotals, wasters: Sequence[Waster], about: str, faults: Optional[Faults] = None
) -> List[str]:
    """The whole in about a dozen lines."""
    if not total.jobs:
        return [f"no jobs {about}".rstrip()]
    lines = [f"{count(total.jobs, 'job')} {about}".rstrip(), ""]
    lines += _row("estimates", _accuracy(total))
    lines += _row(
        "",
        f"{total.remembered:,} from remembered peaks ({_part(total.remembered, total.jobs)})"
        if total.remembered
        else "",
    )
    lines += _row("GPU time", _time(total))
    lines += _row("", _basis(total))
    lines += _row("failed runs", _failures(total))
    lines += _row("if shared", _would(total))
    lines += _row("out of memory", _ooms(total))
    for label, text in zip(("CUDA faults", "", "", ""), _faults(faults) if faults else ()):
        lines += _row(label, text)
    lines += _row("memory granted", _unused(total))
    lines += _row("SM activity", _activity(total))
    lines += _row("held and idle", _held_idle(total))
    lines += _row("idle jobs", _idle(total))
    lines += _row("CPUs", _cpus(total))
    lines += _row("energy", _energy(total))
    lines += _row("unattributed", _unattributed(total))
    lines += _row(
        "wait", f"{duration(total.wait_s / total.wait_jobs)} in the mean" if total.wait_jobs else ""
    )
    if wasters:
        lines += ["", "most memory kept unused"]
        lines += [f"  {line}" for line in _waster_lines(wasters)]
    return lines


def group_lines(group: str, groups: Sequence[JobTotals], *, header: bool) -> List[str]:
    """One line a user, model … with the figures that tell groups apart."""
    rows = [_cells(group, one) for one in groups]
    names = [name for name, _ in _cells(group, JobTotals(""))]
    widths = [max([len(name), *(len(row[at][1]) for row in rows)]) for at, name in enumerate(names)]
    widths[0] = min(widths[0], 2 * _NAME)
    lines = [_table_line(names, widths)] if header else []
    return lines + [_table_line([text for _, text in row], widths) for row in rows]


def group_parsable(group: str, groups: Sequence[JobTotals], *, header: bool) -> List[str]:
    """The same with "|" between."""
    lines = ["|".join(name for name, _ in _cells(group, JobTotals("")))] if header else []
    return lines + ["|".join(parsable(text) for _, text in _cells(group, one)) for one in groups]


def write_summary_csv(
    group: Optional[str], groups: Sequence[JobTotals], file: TextIO, *, header: bool
) -> None:
    """Every figure of every group, for a spreadsheet."""
    writer = csv.writer(file, lineterminator="\n")
    if header:
        writer.writerow([group or "group", *list(summary_json(JobTotals("")))[1:]])
    for one in groups:
        writer.writerow([cell(value) for value in summary_json(one).values()])


def write_summary_json(
    total: JobTotals,
    group: Optional[str],
    groups: Sequence[JobTotals],
    wasters: Sequence[Waster],
    file: TextIO,
    about: Dict[str, Any],
) -> None:
    """All of it for programs."""
    table: Dict[str, Any] = {"schema": SCHEMA, **about, "total": summary_json(total)}
    if group is not None:
        table["by"] = group
        table["groups"] = [summary_json(one) for one in groups]
    table["wasters"] = [waster._asdict() for waster in wasters]
    file.write(json.dumps(table) + "\n")


def summary_json(one: JobTotals) -> Dict[str, Any]:
    """A summary's figures, the computed ones among them."""
    values: Dict[str, Any] = {
        key: round(value, 3) if isinstance(value, float) else value for key, value in one._asdict().items()
    }
    values["jobs_per_gpu"] = None if one.jobs_per_gpu is None else round(one.jobs_per_gpu, 3)
    values["saved"] = None if one.saved is None else round(one.saved, 4)
    values["unused"] = None if one.unused is None else round(one.unused, 4)
    return values


def _part(some: int, of: int) -> str:
    """ "0.4%"."""
    return percent(some / of, digits=1) if of else "-"


def _row(label: str, text: str) -> List[str]:
    return [f"{label:<{_LABEL}}{text}"] if text else []


def _accuracy(one: JobTotals) -> str:
    if not one.estimated:
        return ""
    return (
        f"median error {percent(one.median_error)}, 95% within {percent(one.p95_error)}; "
        f"{one.under_estimate:,} above the estimate, {one.under_request:,} above the need "
        f"({_part(one.under_request, one.estimated)})"
    )


def _time(one: JobTotals) -> str:
    if not one.gpu_s:
        return ""
    if not one.shared:
        return f"{gpu_hours(one.gpu_s)[0]}, none of them shared"
    if one.used_s is None:
        beside = f"{count(one.strangers, 'run')} beside other users' jobs: only root's report has their part"
        alone = f"{gpu_hours(one.alone_s)[0]} if exclusive" if one.alone_s else _run_time(one)
        return f"{alone}; {beside}"
    if one.saved is None:
        return f"{gpu_hours(one.used_s)[0]} used in {_run_time(one)}; without sharing: mostly not known"
    alone, used = gpu_hours(one.alone_s, (one.alone_used_s or 0.0) + (one.redone_s or 0.0))
    jobs = f"{one.jobs_per_gpu or 1:.1f} jobs on a GPU"
    return f"{used} instead of {alone} exclusive ({percent(one.saved)} saved), {jobs}"


def _run_time(one: JobTotals) -> str:
    return f"{gpu_hours(one.gpu_s)[0]} of run time"


def _basis(one: JobTotals) -> str:
    """What "exclusive" rests on."""
    if not one.shared or (one.saved is None and one.used_s is not None):
        return ""
    beside = one.alone_seen + one.alone_guessed
    said = f"of {count(beside, 'run')} while sharing: by their activity, predicted for {one.alone_guessed:,}"
    unknown = f"{count(one.alone_unknown, 'run')} left out: time alone not known" if one.alone_unknown else ""
    return "; ".join(filter(None, (f"exclusive time {said}" if beside else "", unknown)))


def _failures(one: JobTotals) -> str:
    """Runs that exclusive use would not have had, and those that say nothing of it."""
    redone = "" if one.redone_s is None else f" ({gpu_hours(one.redone_s)[0]}, counted as taken)"
    failed = "" if one.failed_s is None else f" ({gpu_hours(one.failed_s)[0]}, left out above)"
    return ", ".join(
        (
            *([f"{one.redone:,} done again{redone}"] if one.redone else []),
            *([f"{one.failed_runs:,} failed{failed}"] if one.failed_runs and one.shared else []),
        )
    )


def _would(one: JobTotals) -> str:
    """For a site that only observes."""
    if not one.would_of_s:
        return ""
    saved = 1 - one.would_s / one.would_of_s
    alone, would = gpu_hours(one.would_of_s, one.would_s)
    jobs = f"{count(one.observed, 'observed job')} need{'s' if one.observed == 1 else ''}"
    return f"by their requests {jobs} {would} instead of {alone} ({percent(saved)} less)"


def _ooms(one: JobTotals) -> str:
    avoided = f"{one.oom_avoided:,} avoided by the reserve" if one.oom_avoided else ""
    if not one.ooms:
        return "; ".join(filter(None, ("none", avoided)))
    met = f"{one.ooms:,} met, {count(one.oom_recovered, 'job')} recovered, {one.oom_lost:,} lost"
    return "; ".join(filter(None, (met, avoided)))


def _faults(found: Faults) -> Sequence[str]:
    """What one MPS server for all would have risked, and how to see what it would have gained."""
    return (
        f"ended {found.ended:,} of {count(found.runs, 'shared run')} on {count(found.gpus, 'GPU')} in "
        f"{found.days:.0f} days, {found.together:,} of them together at one MPS server",
        f"one server for all users would have ended {found.beside:,} more, of other users beside them",
        "not counted: faults that neither MPS nor the kernel logged",
        "what one server gains: gpumem what-if --mode per-user, then --mode shared",
    )


def _unused(one: JobTotals) -> str:
    return "" if one.unused is None else f"{percent(one.unused)} of it never used"


def _activity(one: JobTotals) -> str:
    if not one.sm_used_s:
        return ""
    now = f"{percent(one.sm_s / one.sm_used_s)} of the GPUs that were taken"
    if not one.shared or not one.alone_s or not one.alone_run_s:
        return now
    # The same work in the time that it takes alone.
    before = one.sm_s / (one.sm_gpu_s * one.alone_s / one.alone_run_s)
    return f"{now}; exclusive GPUs would have shown {percent(before)}"


def _cpus(one: JobTotals) -> str:
    if not one.cpu_held_s:
        return ""
    held, used = hours(one.cpu_held_s), hours(one.cpu_used_s)
    if one.cpu_used_s > one.cpu_held_s:
        return f"{used} CPU-hours used where {held} were held: jobs are not kept to their CPUs"
    return f"{percent(one.cpu_used_s / one.cpu_held_s)} of those held were used ({used} of {held} CPU-hours)"


def _energy(one: JobTotals) -> str:
    if not one.energy_jobs:
        return ""
    return f"{energy(one.energy_j / one.energy_jobs)} a job, {energy(one.energy_j)} in all"


def _unattributed(one: JobTotals) -> str:
    return f"{energy(one.idle_energy_j)} while no job held memory of its GPU" if one.idle_energy_j else ""


def _held_idle(one: JobTotals) -> str:
    return (
        f"{gpu_hours(one.idle_s)[0]} of jobs that held memory while the GPU did nothing" if one.idle_s else ""
    )


def _idle(one: JobTotals) -> str:
    if not one.idle_jobs:
        return ""
    unknown = f"; activity of {one.unmeasured:,} not measured" if one.unmeasured else ""
    return f"{one.idle_jobs:,} found, {one.idle_ended:,} cancelled{unknown}"


def _waster_lines(wasters: Sequence[Waster]) -> List[str]:
    width = max(len(fitted(printable(waster.user), _NAME)) for waster in wasters)
    lines = []
    for waster in wasters:
        wasted, granted = waster.wasted_mib_s / _MIB_S_PER_GIB_H, waster.granted_mib_s / _MIB_S_PER_GIB_H
        unit = "GiB-hours"
        if granted < 1:
            wasted, granted, unit = 60 * wasted, 60 * granted, "GiB-minutes"
        digits = 0 if granted >= 10 else 1
        name = fitted(printable(waster.user), _NAME)
        lines.append(
            f"{name:<{width}} {wasted:>10,.{digits}f} of {granted:,.{digits}f} {unit} "
            f"in {count(waster.jobs, 'job')}, most in job {waster.worst_name or waster.worst_job}"
        )
    return lines


def _cells(group: str, one: JobTotals) -> List[Tuple[str, str]]:
    per_job = one.energy_j / one.energy_jobs if one.energy_jobs else None
    activity = one.sm_s / one.sm_used_s if one.sm_used_s else None
    return [
        (group.capitalize() if group != "gpu" else "GPU", printable(one.group) or "-"),
        ("Jobs", f"{one.jobs:,}"),
        ("MedErr", percent(one.median_error)),
        ("P95", percent(one.p95_error)),
        ("Under", f"{one.under_request:,}"),
        ("GPUh", hours(one.used_s)),
        ("Exclusive", hours(one.alone_s or None)),
        ("Jobs/GPU", "" if one.jobs_per_gpu is None else f"{one.jobs_per_gpu:.1f}"),
        ("Unused", percent(one.unused)),
        ("SM%", "" if activity is None else f"{activity * 100:.0f}"),
        ("OOM", f"{one.ooms:,}"),
        ("Lost", f"{one.oom_lost:,}"),
        ("Idle", f"{one.idle_jobs:,}"),
        ("Energy/job", energy(per_job)),
        *([("IfShared", hours(one.would_s))] if one.would_of_s else []),
    ]


def _table_line(texts: Sequence[str], widths: Sequence[int]) -> str:
    first = f"{fitted(texts[0], widths[0]):<{widths[0]}}"
    return " ".join([first, *(f"{text:>{width}}" for text, width in zip(texts[1:], widths[1:]))]).rstrip()
