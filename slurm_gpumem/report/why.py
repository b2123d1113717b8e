"""The answer of `gpumem why` for people: a timeline, a table of tensors, what would help."""

from __future__ import annotations

import pickle
from dataclasses import asdict, replace
from typing import Any, Dict, List, Sequence, Tuple

from slurm_gpumem.estimators.allocator.allocator import FREE, ROUNDING
from slurm_gpumem.estimators.traced.advice import Living, PeakReasons, Timeline
from slurm_gpumem.estimators.traced.replay import allocator_events
from slurm_gpumem.estimators.training_job import describe_estimated
from slurm_gpumem.estimators.types import Gpu
from slurm_gpumem.report.estimate import describe_model
from slurm_gpumem.summaries.trace_types import Trace
from slurm_gpumem.terminal.chart import Style, area_chart, axis_line, below, plot_width, resample
from slurm_gpumem.units import MIB, exact_mib, format_mib

SCHEMA = "gpumem-why/1"
_JSON_POINTS, _JSON_TENSORS = 400, 100
_LONGEST = 24
_Named = Tuple[Tuple[str, ...], Living]
"""The parts of a layer's name, folded ones among them, and its tensor."""
_PHASE_WORDS = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer's step",
    "evaluate": "the evaluation",
    "setup": "the setup",
}


def why_lines(reasons: PeakReasons, style: Style, tensors: int) -> List[str]:
    """What is printed."""
    line, estimate = reasons.timeline, reasons.estimate
    model, job = describe_model(reasons.summary), describe_estimated(reasons.summary, estimate)
    lines = [f"{model}, {job}, {reasons.gpu.name}"]
    allocated = format_mib(line.peak_bytes / MIB)
    lines.append(
        f"peak {format_mib(estimate.peak_mib)}: {allocated} of tensors in {_PHASE_WORDS[line.peak_phase]}, "
        f"{format_mib(estimate.parts['fragmentation'])} fragmentation, "
        f"{format_mib(estimate.parts['context'])} context"
    )
    lines += ["", *timeline_lines(line, style)]
    lines += ["", *tensor_lines(line, style, tensors)]
    lines += ["", *advice_lines(reasons, style)]
    return lines


def why_json(reasons: PeakReasons, notes: Sequence[str]) -> Dict[str, Any]:
    """The same for programs."""
    line, estimate = reasons.timeline, reasons.estimate
    every = max(1, -(-len(line.points) // _JSON_POINTS))
    # Of each stretch the highest point, so that the peak is among them.
    kept = sorted(
        {
            max(range(first, min(first + every, len(line.points))), key=lambda at: sum(line.points[at]))
            for first in range(0, len(line.points), every)
        }
        | {line.peak_point}
    )
    return {
        "schema": SCHEMA,
        "model": reasons.summary.name,
        "gpu": reasons.gpu.name,
        "job": estimate.job._asdict(),
        "peak_mib": estimate.peak_mib,
        "request_mib": estimate.request_mib,
        "parts": dict(estimate.parts),
        "allocated_mib": round(line.peak_bytes / MIB),
        "peak_phase": line.peak_phase,
        "step": line.step,
        "phases": [asdict(span) for span in line.spans],
        "categories": list(line.categories),
        "timeline": [{"event": at, "mib": [round(size / MIB, 2) for size in line.points[at]]} for at in kept],
        "tensors": [
            {**asdict(one), "mib": round(one.bytes / MIB, 2)} for one in line.at_peak[:_JSON_TENSORS]
        ],
        "advice": [asdict(one) for one in reasons.advice],
        "warnings": list(estimate.warnings),
        "notes": list(notes),
    }


def timeline_lines(line: Timeline, style: Style) -> List[str]:
    """Live memory over the step, phases below, the peak marked."""
    columns = plot_width(style)
    values = resample([total / MIB for total in line.totals], columns)
    chart = area_chart(values, style=style, height=12)
    count = max(1, len(line.points))
    at_peak = min(columns - 1, line.peak_point * columns // count)
    arrow = "▲" if style.unicode else "^"
    labels = [(at_peak, f"{arrow} peak")]
    return [*chart, axis_line(columns, style), _phases(line, columns, style), below(labels, columns)]


def _phases(line: Timeline, columns: int, style: Style) -> str:
    """Each phase's name under its part of the axis, where there is room for it."""
    edge = "│" if style.unicode else "|"
    count = max(1, len(line.points))
    labels: List[Tuple[int, str]] = []
    for span in line.spans:
        start = span.first * columns // count
        width = span.last * columns // count - start
        text = f"{edge}{span.name}"
        labels.append((start, text if len(text) < width else text[: max(1, width - 1)]))
    return below(labels, columns)


def tensor_lines(line: Timeline, style: Style, tensors: int) -> List[str]:
    """The largest tensors alive at the peak."""
    alive = repeated(line.at_peak)
    shown = alive[:tensors]
    lines = [f"largest of {sum(one.count for one in alive):,} tensors alive at the peak"]
    times = "×" if style.unicode else "x"
    rows = [(_size(one, times), place_of(one), made_by(one)) for one in shown]
    if not rows:
        return lines
    size_width = max(len(row[0]) for row in rows)
    layer_width = min(max(len(row[1]) for row in rows), style.width - size_width - 26)
    maker_width = style.width - size_width - layer_width - 6
    for size, layer, maker in rows:
        name = f"{_cut(layer, layer_width):<{layer_width}}"
        lines.append(f"  {size:>{size_width}}  {name}  {maker[:maker_width]}")
    rest = sum(one.bytes * one.count for one in alive[tensors:])
    if rest:
        others = sum(one.count for one in alive[tensors:])
        lines.append(f"  {format_mib(rest / MIB):>{size_width}}  {others:,} others")
    return lines


def advice_lines(reasons: PeakReasons, style: Style) -> List[str]:
    """What would lower the peak, with the megabytes of each."""
    if not reasons.advice:
        return ["nothing that we know would lower it by more than 1 %"]
    peak = reasons.estimate.peak_mib
    arrow = "→" if style.unicode else "->"
    minus = "−" if style.unicode else "-"
    lines = [f"what would lower the peak of {exact_mib(peak)}"]
    for one in reasons.advice:
        after = max(0, peak - one.saves_mib)
        rule = "" if one.exact else ", by a rule: trace again for the exact figure"
        lines.append(
            f"  {minus}{exact_mib(one.saves_mib):>11} {arrow} {exact_mib(after):>11}  {one.what}{rule}"
        )
    return lines


def _size(one: Living, times: str) -> str:
    size = one.bytes / MIB
    text = exact_mib(size) if size >= 10 else f"{size:,.1f} MiB"
    return f"{one.count} {times} {text}" if one.count > 1 else text


def place_of(one: Living) -> str:
    """The layer that made a tensor, or what it is where no layer did."""
    words = {
        "inputs": "(the batch)",
        "workspace": "(library workspace)",
        "optimizer": "(optimizer state)",
        "gradients": "(gradient)",
    }
    return one.layer or words.get(one.category, "(loss and loop)")


def made_by(one: Living) -> str:
    """The operator and the phase, or the category where that says more."""
    if one.category in ("weights", "buffers", "gradients", "optimizer"):
        return one.category
    return f"{one.operator.rpartition('::')[2]} ({one.phase})"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else ".." + text[-(width - 2) :]


# -- layers that repeat as one line: 12 × 192 MiB of encoder.layer.{0..11}.intermediate, not twelve lines


def repeated(alive: Sequence[Living]) -> List[Living]:
    """The same tensors, those alike but for a number in their layer's name as one; the largest sum first."""
    found = [(tuple(one.layer.split(".")), one) for one in alive]
    for place in range(max((len(parts) for parts, _ in found), default=0)):
        groups: Dict[Tuple[object, ...], List[_Named]] = {}
        for number, (parts, one) in enumerate(found):
            numbered = place < len(parts) and parts[place].isascii() and parts[place].isdigit()
            # What cannot be folded here is a group of its own.
            where = (parts[:place], parts[place + 1 :]) if numbered else number
            key = (where, one.bytes, one.operator, one.category, one.phase, one.count)
            groups.setdefault(key, []).append((parts, one))
        found = [_merged(group, place) for group in groups.values()]
    named = [replace(one, layer=".".join(parts)) for parts, one in found]
    return sorted(named, key=lambda one: (-one.bytes * one.count, one.layer))


def _merged(group: Sequence[_Named], place: int) -> _Named:
    parts, one = group[0]
    if len(group) == 1:
        return parts, one
    numbers = sorted({int(others[place]) for others, _ in group})
    folded = (*parts[:place], _numbers(numbers), *parts[place + 1 :])
    return folded, replace(one, count=sum(other.count for _, other in group))


def _numbers(numbers: Sequence[int]) -> str:
    """ "{0..3,5}" of 0, 1, 2, 3 and 5."""
    if len(numbers) == 1:
        return str(numbers[0])
    spans: List[List[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ",".join(str(low) if low == high else f"{low}..{high}" for low, high in spans)
    if len(text) > _LONGEST:
        text = f"{numbers[0]}..{numbers[-1]}, {len(numbers)} of them"
    return f"{{{text}}}"


# A traced step for PyTorch's own memory viewer (pytorch.org/memory_viz).
#
# The viewer opens what `torch.cuda.memory._dump_snapshot` writes: a pickle. Ours holds lists, words and
# numbers only, and nobody here reads one.

_PROTOCOL = 4
"""The viewer's own reader knows no later one."""


def snapshot_file(trace: Trace, batch: int, gpu: Gpu) -> bytes:
    """The file's content: every allocation and release of the traced steps, in order."""
    entries: List[Dict[str, object]] = []
    blocks: List[Dict[str, object]] = []
    address = 0
    for at, (value, (_, size)) in enumerate(zip(trace.events, allocator_events(trace, batch, gpu))):
        if size == FREE:
            for action in ("free_requested", "free_completed"):
                entries.append({**blocks[value], "action": action, "time_us": at})
            continue
        site, phase = trace.sites[value], trace.phase_of(at)
        made_by = {
            "name": f"{site.operator} ({phase.name}, step {phase.step})",
            "filename": site.module,
            "line": 0,
        }
        rounded = -(-size // ROUNDING) * ROUNDING
        # No address is used twice: where blocks lie is the allocator's affair, and not drawn.
        block = {
            "addr": address,
            "size": rounded,
            "stream": 0,
            "frames": [made_by],
            "category": site.category,
        }
        address += rounded
        blocks.append(block)
        entries.append({**block, "action": "alloc", "time_us": at})
    return pickle.dumps({"segments": [], "device_traces": [entries]}, protocol=_PROTOCOL)
