"""`gpumem report --html`: one page with charts and tables, which needs nothing but a browser.

The pieces are in `page/`. All data goes in as escaped text or as JSON that no browser runs, and the page
forbids itself every script but its own and every connection (its content security policy).
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict

from slurm_gpumem import __version__
from slurm_gpumem.report.html.figures import facts, notes, tiles, wasters
from slurm_gpumem.report.html.gather import gather
from slurm_gpumem.report.html.tables import group_table, job_table
from slurm_gpumem.report.html.text import clean, count, escaped, moment
from slurm_gpumem.report.html.timeline import timeline
from slurm_gpumem.report.html.types import Gathered, PageSource

_PIECES = Path(__file__).resolve().parent / "assets"
_SCRIPTS = ("base.js", "charts.js", "timeline.js", "tables.js")
_UNSAFE_IN_JSON = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def page(source: PageSource) -> str:
    """The whole page as text."""
    now = source.made_at or time.time()
    gathered = gather(source.rows, now)
    data = _data(source, gathered, now)
    script = "\n".join((_PIECES / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    style = (_PIECES / "page.css").read_text(encoding="utf-8")
    return _fill(
        (_PIECES / "page.html").read_text(encoding="utf-8"),
        {
            "policy": f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
            "img-src data:; base-uri 'none'; form-action 'none'",
            "style": style,
            "script": script,
            "title": escaped(source.title or _title(gathered), 120),
            "about": escaped(_about(source, gathered), 300),
            "tiles": tiles(source.total),
            "facts": facts(source, gathered),
            "groups": _groups(source),
            "wasters": wasters(source),
            "jobs": job_table(gathered.listed),
            "jobs_note": escaped(gathered.listed_why, 400),
            "notes": notes(source),
            "version": escaped(__version__),
            "made": escaped(f"{moment(now)} {time.strftime('%Z', time.localtime(now))}"),
            "data": json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_UNSAFE_IN_JSON),
        },
    )


def _fill(template: str, values: Dict[str, str]) -> str:
    """Put every value where its {{name}} stands, in one pass: a value that looks like a name stays text."""
    import re

    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found.group(1)], template)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _data(source: PageSource, gathered: Gathered, now: float) -> Dict[str, Any]:
    return {
        "offset_s": time.localtime(now).tm_gmtoff,
        "zone": time.strftime("%Z", time.localtime(now)),
        "scatter": gathered.scatter,
        "errors": gathered.errors,
        "changes": [asdict(change) for change in gathered.changes],
        "days": [[clean(day.group, 16), day.used_s, day.gpu_s, day.jobs] for day in source.by_day],
        "timeline": timeline(source, gathered.recent, gathered.jobs, now),
        "occupancy": gathered.occupancy,
    }


def _title(gathered: Gathered) -> str:
    return f"GPU sharing on {gathered.clusters[0]}" if len(gathered.clusters) == 1 else "GPU sharing"


def _about(source: PageSource, gathered: Gathered) -> str:
    words = [count(gathered.jobs, "job")]
    if gathered.first is not None:
        words.append(f"{moment(gathered.first)} to {moment(gathered.last)}")
    if gathered.running:
        words.append(f"{gathered.running:,} still running")
    if source.selection:
        words.append(clean(source.selection, 200))
    return " · ".join(words)


def _groups(source: PageSource) -> str:
    parts = []
    for name, head, groups in (
        ("users", "User", source.by_user),
        ("models", "Model", source.by_model),
        ("gpus", "GPU", source.by_gpu),
    ):
        # One model or GPU alone is told by the figures at the top.
        if len(groups) > 1:
            text, note = group_table(name, head, groups)
            said = f"<p class=note>{escaped(note)}</p>" if note else ""
            parts.append(
                f"<section><h2>By {head if head == 'GPU' else head.lower()}</h2>{text}{said}</section>"
            )
    return "\n".join(parts)
