"""`gpumem report --html`: one page with figures and charts, which needs nothing but a browser.

The pieces are in `assets/`. All data goes in as escaped text or as JSON that no browser runs, and the page
forbids itself every script but its own and every connection (its content security policy).
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Dict

from slurm_gpumem import __version__
from slurm_gpumem.report.html.figures import facts, notes, tiles
from slurm_gpumem.report.html.gather import gather
from slurm_gpumem.report.html.render import asset, hashed, render
from slurm_gpumem.report.html.timeline import timeline
from slurm_gpumem.report.html.types import Gathered, PageSource
from slurm_gpumem.text import clipped, count
from slurm_gpumem.units import minute


def page(source: PageSource) -> str:
    """The whole page as text."""
    now = source.made_at or time.time()
    gathered = gather(source, now)
    script = asset("base.js", "charts.js", "timeline.js", "draw.js")
    style = asset("page.css")
    return render(
        "page.html",
        policy=f"default-src 'none'; script-src {hashed(script)}; style-src {hashed(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        title=clipped(source.title or _title(source, gathered), 120),
        about=_about(source, gathered),
        tiles=tiles(source.total),
        facts=facts(source, gathered),
        notes=notes(source),
        version=__version__,
        made=f"{minute(now)} {time.strftime('%Z', time.localtime(now))}",
        data=_data(source, gathered, now),
    )


def _data(source: PageSource, gathered: Gathered, now: float) -> Dict[str, Any]:
    return {
        "offset_s": time.localtime(now).tm_gmtoff,
        "zone": time.strftime("%Z", time.localtime(now)),
        "scatter": gathered.scatter,
        "errors": gathered.errors,
        "changes": [asdict(change) for change in gathered.changes],
        "days": [
            [clipped(day.group, 16), day.gpu_s if day.used_s is None else day.used_s, day.gpu_s, day.jobs]
            for day in source.by_day
        ],
        "timeline": timeline(source, gathered.recent, gathered.jobs, now),
        "occupancy": gathered.occupancy,
    }


def _title(source: PageSource, gathered: Gathered) -> str:
    what = "Your GPU jobs" if source.personal else "GPU sharing"
    return f"{what} on {gathered.clusters[0]}" if len(gathered.clusters) == 1 else what


def _about(source: PageSource, gathered: Gathered) -> str:
    words = [count(gathered.jobs, "job")]
    if gathered.first is not None:
        words.append(f"{minute(gathered.first)} to {minute(gathered.last)}")
    if gathered.running:
        words.append(f"{gathered.running:,} still running")
    if source.selection:
        words.append(clipped(source.selection, 200))
    return " · ".join(words)
