"""The answer of `gpumem why` as one HTML page: the drawing, and the tables below it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List

from slurm_gpumem.estimators.explain.reasons import PeakReasons
from slurm_gpumem.estimators.explain.timeline import Living, Timeline
from slurm_gpumem.report.estimate import describe_model
from slurm_gpumem.report.html.render import asset, hashed, render
from slurm_gpumem.report.why.groups import repeated
from slurm_gpumem.report.why.series import COLOURS
from slurm_gpumem.report.why.svg import STYLE, why_svg
from slurm_gpumem.report.why.text import made_by, place_of
from slurm_gpumem.units import MIB, format_mib

_TENSORS = 25


@dataclass(frozen=True)
class TensorRow:
    """A line of the table of tensors."""

    mib: str
    times: str
    layer: str
    maker: str
    colour: str = ""
    part: float = 0.0
    """Of the largest line, in percent."""


def why_html(reasons: PeakReasons) -> str:
    """The whole page."""
    from markupsafe import Markup

    estimate, style = reasons.estimate, asset("why.css")
    return render(
        "why.html",
        policy=f"default-src 'none'; style-src {hashed(style)} {hashed(STYLE)}; base-uri 'none'",
        style=style,
        name=reasons.summary.name or "model",
        peak=format_mib(estimate.peak_mib),
        about=describe_model(reasons.summary),
        parts=", ".join(f"{name} {size:,} MiB" for name, size in estimate.parts.items() if size),
        # Ours, and its words are escaped already.
        drawing=Markup(why_svg(reasons)),
        peak_mib=estimate.peak_mib,
        advice=reasons.advice,
        phase=reasons.timeline.peak_phase,
        tensors=_tensors(reasons.timeline),
    )


def _tensors(timeline: Timeline) -> List[TensorRow]:
    alive = repeated(timeline.at_peak)
    shown, rest = alive[:_TENSORS], alive[_TENSORS:]
    most = max((one.bytes * one.count for one in shown), default=1)
    rows = [_row(one, most) for one in shown]
    if rest:
        size = sum(one.bytes * one.count for one in rest)
        rows.append(TensorRow(f"{size / MIB:,.1f}", f"{sum(one.count for one in rest):,}", "others", ""))
    return rows


def _row(one: Living, most: int) -> TensorRow:
    part = round(one.bytes * one.count / most * 100, 1)
    size, times = f"{one.bytes / MIB:,.1f}", f"{one.count:,}"
    return TensorRow(size, times, place_of(one), made_by(one), COLOURS[one.category], part)
