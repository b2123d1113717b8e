"""The answer of `gpumem why` as one HTML page that needs nothing else."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, List, Tuple

from slurm_gpumem.estimators.explain.timeline import Timeline
from slurm_gpumem.estimators.training_job import describe_job
from slurm_gpumem.report.estimate import describe_model
from slurm_gpumem.report.why.series import COLOURS, MIB, present, sampled
from slurm_gpumem.report.why.text import made_by, place_of
from slurm_gpumem.terminal.chart import ticks
from slurm_gpumem.units import format_mib

if TYPE_CHECKING:
    from slurm_gpumem.cli.why import Reasons

_WIDTH, _HEIGHT = 1000, 380
_LEFT, _TOP, _RIGHT, _BOTTOM = 76, 28, 12, 34
_TENSORS = 25
_RULE = " (by a rule; trace again for the exact figure)"

_STYLE = """
:root{--ink:#222;--pale:#666;--line:#ddd;--ground:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#eee;--pale:#aaa;--line:#444;--ground:#181a1b}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--ground);max-width:1020px;
margin:2em auto;padding:0 1em}
h1{font-size:1.4em;margin:0}h2{font-size:1.05em;margin:1.8em 0 .4em}p{margin:.2em 0;color:var(--pale)}
svg{width:100%;height:auto;margin-top:1em}svg text{font-size:12px;fill:var(--pale)}svg .mark{fill:var(--ink)}
table{border-collapse:collapse;width:100%}
td,th{padding:.25em .6em;text-align:left;border-bottom:1px solid var(--line)}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}td.bar{width:22%}
td.bar div{height:.8em;border-radius:2px}
td.code{font-family:ui-monospace,monospace;font-size:.92em}
.key{display:inline-block;margin-right:1.2em}
.key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border-radius:2px}
"""


def why_html(reasons: Reasons) -> str:
    """The whole page."""
    estimate, line = reasons.estimate, reasons.timeline
    title = reasons.subject.summary.name or "model"
    parts = ", ".join(f"{name} {size:,} MiB" for name, size in estimate.parts.items() if size)
    return "\n".join(
        [
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{escape(title)}: GPU memory</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}: {format_mib(estimate.peak_mib)}</h1>",
            f"<p>{escape(describe_model(reasons.subject.summary))}, {escape(describe_job(estimate.job))}, "
            f"{escape(reasons.gpu.name)}</p><p>{escape(parts)}</p>",
            _svg(line),
            _legend(line),
            "<h2>What would lower it</h2>",
            _advice(reasons),
            f"<h2>Largest tensors alive at the peak (in the {escape(line.peak_phase)} phase)</h2>",
            _tensors(line),
            "</body></html>\n",
        ]
    )


def _svg(line: Timeline) -> str:
    columns, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    top = max(line.peak_bytes / MIB * 1.04, 1.0)
    count = max(1, len(line.points))
    base = _TOP + height
    pieces = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="live memory over one step">']
    for value, label in ticks(top):
        y = base - value / top * height
        pieces.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
        )
    points = sampled(line, columns)
    lower = [0.0] * len(points)
    for number, (name, colour) in enumerate(COLOURS.items()):
        upper = [low + sizes[number] for low, (_, sizes) in zip(lower, points)]
        if max(upper, default=0) > 0 and any(u > low for u, low in zip(upper, lower)):
            shape = _outline(points, upper, lower, (count, columns, top, height, base))
            pieces.append(f'<path d="{shape}" fill="rgb{colour}"><title>{name}</title></path>')
        lower = upper
    for span in line.spans:
        x = _LEFT + span.first / count * columns
        pieces.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{base + 8}" '
            'stroke="var(--pale)" stroke-dasharray="2 3"/>'
        )
        if (span.last - span.first) / count * columns > 7 * len(span.name) + 8:
            pieces.append(f'<text x="{x + 5:.1f}" y="{base + 18}">{escape(span.name)}</text>')
    x = _LEFT + line.peak_point / count * columns
    summit = base - line.peak_bytes / MIB / top * height
    side, shift = ("end", -5) if x > _WIDTH * 0.8 else ("start", 5)
    pieces.append(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{summit:.1f}" stroke="var(--ink)"/>'
        f'<text class="mark" x="{x + shift:.1f}" y="{_TOP - 10}" text-anchor="{side}">'
        f"{format_mib(line.peak_bytes / MIB)} of tensors</text>"
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{base}" y2="{base}" stroke="var(--ink)"/></svg>'
    )
    return "\n".join(pieces)


def _outline(
    points: List[Tuple[int, Tuple[int, ...]]],
    upper: List[float],
    lower: List[float],
    scale: Tuple[int, int, float, int, int],
) -> str:
    count, columns, top, height, base = scale

    def at(point: int, size: float) -> str:
        return f"{_LEFT + point / count * columns:.1f},{base - size / MIB / top * height:.1f}"

    over = [at(point, size) for (point, _), size in zip(points, upper)]
    under = [at(point, size) for (point, _), size in zip(points, lower)]
    return "M" + "L".join([*over, *reversed(under)]) + "Z"


def _legend(line: Timeline) -> str:
    return "".join(
        f'<span class="key"><i style="background:rgb{COLOURS[name]}"></i>{name}</span>'
        for name in present(line)
    )


def _tensors(line: Timeline) -> str:
    shown = line.at_peak[:_TENSORS]
    most = max((one.bytes * one.count for one in shown), default=1)
    rows = [
        "<table><tr><th class=n>MiB</th><th class=n>times</th><th>layer</th><th>made by</th><th></th></tr>"
    ]
    for one in shown:
        rows.append(
            f"<tr><td class=n>{one.bytes / MIB:,.1f}</td><td class=n>{one.count}</td>"
            f"<td class=code>{escape(place_of(one))}</td><td class=code>{escape(made_by(one))}</td>"
            f'<td class=bar><div style="width:{one.bytes * one.count / most * 100:.1f}%;'
            f'background:rgb{COLOURS[one.category]}"></div></td></tr>'
        )
    rest = line.at_peak[_TENSORS:]
    if rest:
        size = sum(one.bytes * one.count for one in rest) / MIB
        others = sum(one.count for one in rest)
        cells = f"<td class=n>{size:,.1f}</td><td class=n>{others:,}</td>"
        rows.append(f"<tr>{cells}<td>others</td><td></td><td></td></tr>")
    return "".join([*rows, "</table>"])


def _advice(reasons: Reasons) -> str:
    if not reasons.advice:
        return "<p>Nothing that we know would lower it by more than 1 %.</p>"
    peak = reasons.estimate.peak_mib
    rows = ["<table><tr><th class=n>saves MiB</th><th class=n>peak then</th><th>change</th></tr>"]
    for one in reasons.advice:
        rows.append(
            f"<tr><td class=n>{one.saves_mib:,}</td><td class=n>{max(0, peak - one.saves_mib):,}</td>"
            f"<td>{escape(one.what)}{'' if one.exact else _RULE}</td></tr>"
        )
    return "".join([*rows, "</table>"])
