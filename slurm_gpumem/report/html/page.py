"""`gpumem report --html`: one page with figures and charts, which needs nothing but a browser.

The pieces are in `assets/`. All data goes in as escaped text or as JSON that no browser runs, and the page
forbids itself every script but its own and every connection (its content security policy).
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Deque, Dict, Optional, Set

from slurm_gpumem import __version__
from slurm_gpumem.accounting.types import JobRow
from slurm_gpumem.errors import UsageError
from slurm_gpumem.report.html.accuracy import Errors, Scatter
from slurm_gpumem.report.html.figures import facts, notes, tiles
from slurm_gpumem.report.html.timeline import MOST_GPUS, timeline
from slurm_gpumem.report.html.types import Gathered, PageSource
from slurm_gpumem.report.html.usage import BeforeAfter, Occupancy
from slurm_gpumem.text import clipped, count
from slurm_gpumem.units import minute

if TYPE_CHECKING:
    from markupsafe import Markup

_ASSETS = Path(__file__).resolve().parent / "assets"
_LONGEST = 400
"""Characters of one value; what users name is cut much earlier, where it is known what it is."""
_MOST_RECENT = 1_000
"""Jobs on the timeline."""


def page(source: PageSource) -> str:
    """The whole page as text."""
    now = source.made_at or time.time()
    gathered = _gather(source, now)
    script = _asset("base.js", "charts.js", "timeline.js", "draw.js")
    style = _asset("page.css")
    return _render(
        "page.html",
        policy=f"default-src 'none'; script-src {_hashed(script)}; style-src {_hashed(style)}; "
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


def _gather(source: PageSource, now: float) -> Gathered:
    """Read the rows once; they come oldest end first."""
    scatter, errors, change, occupancy = Scatter(), Errors(), BeforeAfter(), Occupancy()
    recent: Deque[JobRow] = deque(maxlen=_MOST_RECENT)
    jobs = running = 0
    clusters: Set[str] = set()
    first: Optional[float] = None
    last: Optional[float] = None
    for row in source.rows:
        jobs += 1
        running += row.end is None
        if len(clusters) < 2 and row.cluster:
            clusters.add(row.cluster)
        end = now if row.end is None else row.end
        first = row.start if first is None else min(first, row.start)
        last = end if last is None else max(last, end)
        scatter.add(row)
        errors.add(row)
        change.add(row)
        occupancy.add(row, now)
        recent.append(row)
    wide = first is not None and (jobs > _MOST_RECENT or occupancy.gpus > MOST_GPUS)
    return Gathered(
        jobs=jobs,
        clusters=tuple(sorted(clusters)),
        first=first,
        last=last,
        running=running,
        scatter=scatter.result(),
        errors=errors.result(),
        changes=change.result(),
        occupancy=occupancy.result(first, last) if wide and first is not None and last is not None else None,
        recent=tuple(recent),
    )


# -- jinja2: every value is escaped, whoever wrote it, and a name that is missing is an error


def need_jinja2() -> None:
    """UsageError where it is missing, before any work is done."""
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise UsageError(
            "an HTML page needs jinja2, which is not installed for this Python.\npip install jinja2"
        ) from None


def _render(template: str, **values: Any) -> str:
    """The page that a template of `assets/` makes of the values."""
    need_jinja2()
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.get_template(template).render(values)


def _asset(*names: str) -> Markup:
    """Our own style sheets and scripts, as they are."""
    from markupsafe import Markup

    return Markup("\n").join(Markup((_ASSETS / name).read_text(encoding="utf-8")) for name in names)


def _hashed(text: str) -> str:
    """How a content security policy names our own script or style, so that the page runs no other."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _harmless(value: Any) -> Any:
    """Escaping keeps markup out; control characters, direction marks and endless names are kept out here."""
    # Markup is a subclass of str: our own, already safe.
    return clipped(value, _LONGEST) if type(value) is str else value
