"""The answer of `gpumem what-if` as a page: the same figures as on the terminal, and a drawing."""

from __future__ import annotations

from typing import List, Sequence

from slurm_gpumem import __version__
from slurm_gpumem.report.html.render import asset, hashed, render
from slurm_gpumem.simulation.what_if import ALONE, BOUNDED, SHARED, GroupGain, WhatIf
from slurm_gpumem.simulation.what_if_text import about, cells_of, how_sure
from slurm_gpumem.svg import LIGHT_AND_DARK, Frame, document, key, text

_MOST = 20
_COLOURS = {ALONE: "#8a97a5", SHARED: "#2f7ebc", BOUNDED: "#4aa564"}


def what_if_page(found: WhatIf, slowdown: float, *, names: bool) -> str:
    """The whole page."""
    from markupsafe import Markup

    style = asset("why.css")
    titles, *rows = cells_of(found, slowdown)
    groups = [{"title": "Partitions", "rows": _shown("partition", found.partitions, names=names)}]
    if names:
        groups.append({"title": "Users", "rows": _shown("user", found.by_user, names=names)})
    return render(
        "what_if.html",
        policy=f"default-src 'none'; style-src {hashed(style)} {hashed(LIGHT_AND_DARK)}; base-uri 'none'",
        style=style,
        about=about(found),
        # Ours, and its words are escaped already.
        drawing=Markup(drawing(found)),
        titles=titles,
        rows=rows,
        groups=groups,
        sure=how_sure(found),
        version=__version__,
    )


def drawing(found: WhatIf) -> str:
    """GPU-hours and mean wait as bars, the three ways side by side, with the range over the assumptions."""
    width, height = 960, 230
    parts: List[str] = []
    for place, (title, name) in enumerate(
        (("GPU-hours with a job", "gpu_hours"), ("mean wait, hours", "waiting_h"))
    ):
        values = {
            way: [float(getattr(ways[way], name)) for ways in found.totals.values()]
            for way in (ALONE, SHARED, BOUNDED)
        }
        highest = max(max(each) for each in values.values()) or 1.0
        left = 60 + place * 480
        frame = Frame(left + 380, height, left, 0, 40, 50, (0.0, 3.0), (0.0, highest * 1.05))
        parts.append(text(left, 24, title, "ink"))
        for number, (way, each) in enumerate(values.items()):
            middle = float(getattr(found.totals["middle"][way], name))
            x, top = frame.x(number + 0.2), frame.y(middle)
            wide = frame.x(number + 0.8) - x
            parts.append(
                f'<rect x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" rx="2" fill="{_COLOURS[way]}" '
                f'height="{max(0.0, frame.base - top):.1f}"/>'
            )
            if min(each) != max(each):
                at = x + wide / 2
                parts.append(
                    f'<line class="axis" x1="{at:.1f}" y1="{frame.y(min(each)):.1f}" x2="{at:.1f}" '
                    f'y2="{frame.y(max(each)):.1f}"/>'
                )
            label = f"{middle:,.0f}" if highest >= 100 else f"{middle:,.2f}"
            parts.append(text(x + wide / 2, frame.base + 18, label, "ink", anchor="middle"))
    for number, (way, colour) in enumerate(_COLOURS.items()):
        parts.append(key(60 + number * 200, height - 18, colour, way))
    return document(width, height, "GPU-hours and mean wait without and with sharing", parts, LIGHT_AND_DARK)


def _shown(what: str, rows: Sequence[GroupGain], *, names: bool) -> List[GroupGain]:
    return [
        row if names else row._replace(name=f"{what} {number}") for number, row in enumerate(rows[:_MOST], 1)
    ]
