"""`gpumem report -j JOB`: one job in depth, on one screen."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from slurm_gpumem.accounting.types import INSTANCE, Attempt, Curve, GpuStay, JobDetail, JobRow
from slurm_gpumem.formats.job_record import preallocated
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.formats.remembered import CpuRun
from slurm_gpumem.formats.verdicts import OOM, VERDICTS
from slurm_gpumem.report.causes import cause_lines, cause_of
from slurm_gpumem.report.columns import as_json
from slurm_gpumem.submission.share.host import cpus_wanted
from slurm_gpumem.terminal.bars import bar
from slurm_gpumem.terminal.chart import plot
from slurm_gpumem.text import count, printable
from slurm_gpumem.units import ceil_div, duration, energy, exact_mib, gpu_hours, moment, percent, short_mib

# What the next run of a job could do better, in one line, from what this one measured.

_RESERVE = 0.95
"""A batch is advised up to this part of what was granted: activations grow with it, but not quite evenly."""
_IDLE, _IDLE_AFTER_S = 0.1, 600.0
_NOT_IN_ADVANCE = (
    "to see what it needs, and share by that: export XLA_PYTHON_CLIENT_PREALLOCATE=false (JAX) or "
    "TF_FORCE_GPU_ALLOW_GROWTH=true (TensorFlow); a server takes the part that it is given"
)
_FIXED_PARTS = ("weights", "gradients", "optimizer", "context")
"""Parts of an estimate that do not grow with the batch."""


def advice(row: JobRow, shard_mib: int) -> str:
    """ "12 shards would have done; batch 192 would still fit"; "" when there is nothing to say."""
    if row.end is None or not row.peak_mib:
        return ""
    said: List[str] = []
    if row.ooms and row.state != "COMPLETED":
        said += _after_oom(row)
    elif preallocated(row.notes):
        said.append(_NOT_IN_ADVANCE)
    else:
        said += _sizes(row, shard_mib)
    said += _advice_cpus(row)
    if row.sm_share is not None and row.sm_share < _IDLE and (row.run_s or 0) >= _IDLE_AFTER_S:
        said.append(f"the GPU waited for it most of the time ({percent(row.sm_share)} SM activity)")
    return "; ".join(said)


def largest_batch(row: JobRow, room_mib: float) -> Optional[int]:
    """The largest batch that `room_mib` holds, by the measured peak and the parts that do not grow."""
    if not row.parts or not row.batch or not row.peak_mib:
        return None
    fixed = sum(row.parts.get(name, 0) for name in _FIXED_PARTS)
    growing = row.peak_mib - fixed
    if growing <= 0 or room_mib <= fixed:
        return None
    return _handy(int((room_mib - fixed) / growing * row.batch))


def _sizes(row: JobRow, shard_mib: int) -> List[str]:
    assert row.peak_mib is not None
    said: List[str] = []
    enough = ceil_div(row.peak_mib, shard_mib)
    if row.shards and row.limit_mib and row.peak_mib <= row.limit_mib:
        if _more_than_memory(row, shard_mib):
            said.append(f"memory alone takes {enough} of its {count(row.shards, 'shard')}")
        elif enough < row.shards:
            said.append(f"{count(enough, 'shard')} would have done")
        else:
            said.append(f"it needed its {count(row.shards, 'shard')}")
    elif row.shards and row.limit_mib:
        said.append(f"it took more than its {count(row.shards, 'shard')}: it needs {enough}")
    elif row.sharing == INSTANCE:
        said += [] if enough * shard_mib < (row.gpu_memory_mib or 0) else ["it needed its whole MIG instance"]
    elif row.gpu_memory_mib:
        of = row.gpu_memory_mib // shard_mib
        said.append(
            f"{count(enough, 'shard')} of the GPU's {of} would have done"
            if enough < of
            else "it needed the whole GPU"
        )
    granted = row.granted_mib
    batch = largest_batch(row, granted * _RESERVE) if granted and row.judged else None
    if batch is not None and row.batch is not None and batch > row.batch:
        said.append(f"batch {batch} would still fit")
    return said


def _more_than_memory(row: JobRow, shard_mib: int) -> bool:
    """Whether it was submitted with more shards than for its memory: its activity takes its part, too.

    After running out of memory it has more for another reason.
    """
    asked = ceil_div(row.request_mib, shard_mib) if row.request_mib else None
    return asked is not None and not row.ooms and row.shards is not None and asked < row.shards


def _advice_cpus(row: JobRow) -> List[str]:
    if not row.cpus or row.cpus_high is None or not row.judged:
        return []
    enough = cpus_wanted([CpuRun(row.cpus_high, row.cpus)])
    return [f"{enough} of its {row.cpus} CPUs would have done"] if enough and enough < row.cpus else []


def _after_oom(row: JobRow) -> List[str]:
    room = row.oom_limit_mib
    # What it wanted is not known: its peak is where it was stopped. The estimate says what grows.
    if room and row.parts and row.batch:
        fixed = sum(row.parts.get(name, 0) for name in _FIXED_PARTS)
        growing = max(room, sum(row.parts.values())) - fixed
        batch = (
            _handy(int((room * _RESERVE - fixed) / growing * row.batch))
            if growing > 0 and room > fixed
            else 0
        )
        if 0 < batch < row.batch:
            return [f"batch {batch} may fit"]
    return []


def _handy(batch: int) -> int:
    """Rounded down to what people take: 207 → 192, 13 → 12."""
    step = 1
    while step * 8 <= batch:
        step *= 2
    return batch // step * step


_PLOT_WIDTH, _MEMORY_HEIGHT, _ACTIVITY_HEIGHT = 60, 6, 4
_PARTS_WIDTH = 40
_MOST_NAMED = 8


def job_lines(detail: JobDetail, shard_mib: int, *, unicode: bool) -> List[str]:
    """The screen."""
    row = detail.row
    lines = _head(row, unicode)
    lines += [f"  {line}" for line in cause_lines(cause_of(row.state, detail.runs))]
    for run in detail.runs:
        if len(detail.runs) > 1 or row.attempts > 1:
            lines += ["", _run_line(run, row.attempts)]
        for stay in run.stays:
            lines += _curves(row, run, stay, unicode)
    unrecorded = sorted(set(range(row.attempts)) - {run.restarts for run in detail.runs})
    if unrecorded and not detail.missing:
        numbers = ", ".join(str(number + 1) for number in unrecorded[:_MOST_NAMED])
        more = " and others" if len(unrecorded) > _MOST_NAMED else ""
        why = "its node failed, or its records are not collected yet"
        lines += ["", f"  no record of run {numbers}{more}: {why}"]
    if detail.missing:
        lines += ["", f"its record is not there any more: {printable(detail.missing[0])}"]
    lines += _parts(row, unicode)
    lines += ["", *_verdict(row)]
    said = advice(row, shard_mib)
    if said:
        lines += ["", f"advice: {said}"]
    return lines


def detail_json(detail: JobDetail, shard_mib: int) -> Dict[str, Any]:
    """The same for programs."""
    return {
        **as_json(detail.row),
        "cause": cause_of(detail.row.state, detail.runs)._asdict(),
        "advice": advice(detail.row, shard_mib),
        "runs": [_run_json(run) for run in detail.runs],
        "missing": list(detail.missing),
    }


def _head(row: JobRow, unicode: bool) -> List[str]:
    dot = " · " if unicode else " - "
    made = [f"batch {row.batch}" if row.batch else "", row.optimizer, row.precision]
    model = row.model or "model not known"
    settings = ", ".join(text for text in made if text)
    first = [
        f"Job {row.name}",
        printable(row.user),
        printable(model) + (f" ({printable(settings)})" if settings else ""),
    ]
    where = ", ".join(
        f"{device.label}{f' ({device.name}, {short_mib(device.memory_mib)})' if device.name else ''}"
        for device in row.devices
    )
    size = ", ".join(filter(None, (printable(row.gpu), short_mib(row.gpu_memory_mib))))
    state = row.state if row.end is None else f"{row.state} after {duration(row.run_s)}"
    second = [printable(state), f"on {printable(where)}" if where else "", f"started {moment(row.start)}"]
    third = [f"waited {duration(row.wait_s)}" if row.wait_s is not None else ""]
    if row.shards:
        nodes = len({device.node for device in row.devices})
        each = f" on each of {nodes} nodes" if nodes > 1 else ""
        third.append(f"{count(row.shards, 'shard')} ({short_mib(row.limit_mib)}){each}")
    elif row.share_known:
        held = "a MIG instance" if row.sharing == INSTANCE else "a whole GPU"
        third.append(f"{held}{f' ({size})' if size else ''}")
    else:
        asked = f", {short_mib(row.request_mib)} needed" if row.request_mib else ""
        third.append(f"its share is not measured yet{asked}")
    if row.companions:
        third.append(f"shared with {', '.join(row.company)}")
    elif row.share_known and row.sharing != INSTANCE:
        third.append("alone on its GPU" if row.end is not None else "alone on its GPU so far")
    if row.cpus and row.cpus_mean is not None:
        third.append(f"{_cpus(row.cpus_mean)} of {count(row.cpus, 'CPU')} busy{_peak_of_cpus(row)}")
    if row.attempts > 1:
        in_slots = f", {count(row.slots, 'slot')} ended with a checkpoint" if row.slots else ""
        third.append(f"{count(row.attempts, 'run')}{in_slots}, {row.ooms} out of memory")
    lines = [dot.join(first), "  " + dot.join(filter(None, second)), "  " + dot.join(filter(None, third))]
    return lines


def _peak_of_cpus(row: JobRow) -> str:
    return "" if row.cpus_high is None else f", at most {_cpus(row.cpus_high)} in 95% of its busy time"


def _cpus(number: float) -> str:
    return f"{number:.1f}"


def _run_line(run: Attempt, attempts: int) -> str:
    given = f"{count(run.shards, 'shard')} ({short_mib(run.limit_mib)})" if run.shards else _undivided(run)
    verdict = VERDICTS[OOM] if run.oom else VERDICTS.get(run.verdict)
    end = verdict.ended if verdict and run.state != "COMPLETED" else run.state
    if run.end is None and run.restarts + 1 < attempts:
        end = "its node did not record the end"
    return printable(
        f"  run {run.restarts + 1} on {run.node}, {given}: {end}, peak {short_mib(run.peak_mib) or '?'}"
    )


def _undivided(run: Attempt) -> str:
    profiles = [profile for stay in run.stays if (profile := profile_name(stay.device.name))]
    return ", ".join(profiles) if profiles else "whole GPU"


def _curves(row: JobRow, run: Attempt, stay: GpuStay, unicode: bool) -> List[str]:
    curve = stay.curve
    if curve is None:
        return []
    peak = max((value for value in curve.memory_mib if value is not None), default=0)
    limit = run.limit_mib if run.shards else stay.device.memory_mib
    top = float(max(limit or 0, peak, 1))
    label = printable(stay.device.label) + " " if len(run.stays) > 1 else ""
    lines = [
        "",
        f"  {label}memory: peak {short_mib(stay.peak_mib) or short_mib(peak)} of {short_mib(limit) or '?'}",
    ]
    memory = plot(
        curve.memory_mib,
        top,
        width=_PLOT_WIDTH,
        height=_MEMORY_HEIGHT,
        labels=[f"  {short_mib(top)}", "", "", short_mib(top / 2)],
        unicode=unicode,
    )
    lines += memory
    known = [value for value in curve.sm_active if value is not None]
    if known:
        device = "instance" if profile_name(stay.device.name) else "GPU"
        whole = f", the whole {device} {percent(stay.gpu_sm)}" if stay.gpu_sm is not None else ""
        mean = percent(stay.sm_share if stay.sm_share is not None else sum(known) / len(known))
        lines += ["", f"  {label}SM activity: its part {mean} in the mean{whole}"]
        lines += [f"  {label}the whole {device}: {means}" for means in _means(stay.gpu_means)]
        lines += plot(
            curve.sm_active,
            1.0,
            width=_PLOT_WIDTH,
            height=_ACTIVITY_HEIGHT,
            labels=[f"{'100%':>{len(short_mib(top)) + 2}}"],
            unicode=unicode,
        )
    lines.append(_time_axis(curve, len(short_mib(top)) + 4))
    return lines


def _means(means: Mapping[str, float]) -> List[str]:
    """ "tensor cores 41%, memory busy 33%, PCIe out 310M/s, in 1.2G/s"; nothing where none is known."""
    parts = (("tensor cores", "tensor_active"), ("memory busy", "dram_active"), ("occupancy", "sm_occupancy"))
    words = [f"{title} {percent(means[name])}" for title, name in parts if name in means]
    for title, name in (("PCIe", "pcie"), ("NVLink", "nvlink")):
        ways = [(way, means.get(f"{name}_{of}_mib_s")) for way, of in (("out", "tx"), ("in", "rx"))]
        rates = ", ".join(f"{way} {short_mib(rate)}/s" for way, rate in ways if rate is not None)
        words += [f"{title} {rates}"] if rates else []
    return [", ".join(words)] if words else []


def _time_axis(curve: Curve, margin: int) -> str:
    end = duration(curve.step_s * len(curve.memory_mib))
    return " " * margin + "0" + end.rjust(_PLOT_WIDTH - 1)


def _parts(row: JobRow, unicode: bool) -> List[str]:
    if not row.parts:
        return []
    scale = max(sum(row.parts.values()), row.peak_mib or 0)
    width = max(len(name) for name in (*row.parts, "measured"))
    lines = ["", "  estimate"]
    for name, size in [*row.parts.items(), ("estimated", row.estimate_mib), ("measured", row.peak_mib)]:
        if size is not None:
            drawn = bar(size, scale, width=_PARTS_WIDTH, unicode=unicode)
            lines.append(f"  {name:<{width}} {exact_mib(size):>13}  {drawn}".rstrip())
    return lines


def _verdict(row: JobRow) -> List[str]:
    said = []
    if row.estimate_mib is not None:
        by = {"mem": "asked for by hand"}.get(
            row.estimator, f"estimated by {printable(row.estimator or '?')}"
        )
        said.append(f"{short_mib(row.estimate_mib)} {by}")
    elif row.request_mib is not None:
        said.append(f"{short_mib(row.request_mib)} asked for by hand")
    if row.peak_mib is not None:
        error = f" (error {percent(row.shown_error, sign=True)})" if row.error is not None else ""
        said.append(f"{short_mib(row.peak_mib)} measured{error}")
    if row.waste_mib is not None:
        said.append(f"{short_mib(row.waste_mib)} of {short_mib(row.granted_mib)} never used")
    lines = ["  " + ", ".join(said)] if said else []
    use = []
    if row.used_s is not None and row.gpu_s is not None:
        run, used = gpu_hours(row.gpu_s, row.used_s)
        use.append(f"{used} used in {run} of run time")
    if row.slowdown is not None:
        use.append(
            f"ran {row.slowdown:.2f} times as long as alone (by {row.alone_by or 'measured'} activity)"
        )
    elif row.companions and row.end is not None:
        use.append("how much slower than alone is not known")
    if row.said_at_most is not None and row.companions:
        use.append(f"expected slowdown {row.said_slowdown:.1f}x, worst case {row.said_at_most:.1f}x")
    if row.idle_s:
        use.append(f"held its GPU idle for {duration(row.idle_s)}")
    if row.energy_j is not None:
        use.append(energy(row.energy_j))
    if use:
        lines.append("  " + ", ".join(use))
    lines += [f"  note: {printable(text)}" for text in row.notes]
    return lines


def _run_json(run: Attempt) -> Dict[str, Any]:
    own = run._asdict()
    stays = own.pop("stays")
    return {**own, "gpus": [_stay_json(stay) for stay in stays]}


def _stay_json(stay: GpuStay) -> Dict[str, Any]:
    return {
        "uuid": stay.device.uuid,
        "node": stay.device.node,
        "number": stay.device.number,
        "name": stay.device.name,
        "memory_mib": stay.device.memory_mib,
        "peak_mib": stay.peak_mib,
        "mean_mib": stay.mean_mib,
        "energy_j": stay.energy_j,
        "sm_share": stay.sm_share,
        "gpu_sm": stay.gpu_sm,
        "gpu_means": dict(stay.gpu_means),
        "curve": None if stay.curve is None else stay.curve._asdict(),
    }
