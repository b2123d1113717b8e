"""`gpumem report --html`: one page with figures and charts, which needs nothing but a browser.

The pieces are in `assets/`. All data goes in as escaped text or as JSON that no browser runs, and the page
forbids itself every script but its own and every connection (its content security policy).
"""

from __future__ import annotations

import base64
import hashlib
import sys
import time
from collections import deque
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Deque, Dict, Iterator, Optional, Set

from slurm_gpumem import __version__
from slurm_gpumem.accounting.store import Store
from slurm_gpumem.accounting.types import Filters, JobRow
from slurm_gpumem.errors import UsageError
from slurm_gpumem.named_files import check_target, save
from slurm_gpumem.report.html.accuracy import Errors, Scatter, facts, notes, tiles
from slurm_gpumem.report.html.types import Gathered, PageSource
from slurm_gpumem.report.html.usage import MOST_DRAWN, BeforeAfter, Occupancy, timeline
from slurm_gpumem.terminal.progress import ProgressBar
from slurm_gpumem.terminal.say import say
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
    wide = first is not None and (jobs > _MOST_RECENT or occupancy.gpus > MOST_DRAWN)
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


# `gpumem report --html FILE`: the report as one page for a browser.

# Users as numbers, for a page that is shown to others: "user 1" is the one with the most GPU-hours.


def numbered(source: PageSource) -> PageSource:
    """The same page without users' names, and without names of jobs, in which users often write their own.

    Jobs keep their numbers, by which their owners find them.
    """
    numbers: Dict[str, str] = {}

    def number(user: str) -> str:
        return numbers.setdefault(user, f"user {len(numbers) + 1}")

    for user in source.users:
        number(user)
    rows = (row._replace(user=number(row.user), job_name="") for row in source.rows)
    return replace(source, rows=rows, names=False)


def write_html(store: Store, filters: Filters, output: str, *, names: bool) -> int:
    """Make the page; "-" is standard output. One user's is theirs; on all others' users are numbered."""
    # Before the work, not after it: what is missing is known at once.
    need_jinja2()
    target = None if output == "-" else check_target(output, "report.html")
    with ProgressBar("reading jobs") as bar:
        source = _source(store, filters, bar)
        text = page(source if names or source.personal else numbered(source))
    if target is None:
        sys.stdout.write(text)
        return 0
    others = store.freshness.everybody
    save(target, text, mode=0o600 if others else None)
    size = f"{len(text.encode()) / 1e6:.1f} MB"
    whose = "; it shows everybody's jobs: only you can read it" if others else ""
    say(f"{output}: {count(source.total.jobs, 'job')}, {size}, needs nothing but a browser{whose}")
    return 0


def _source(store: Store, filters: Filters, bar: ProgressBar) -> PageSource:
    total = store.summary(filters)

    def rows() -> Iterator[JobRow]:
        for number, row in enumerate(store.select(filters), 1):
            yield row
            bar(number, total.jobs)

    return PageSource(
        rows=rows(),
        total=total,
        users=[one.group for one in store.summary_by("user", filters)],
        by_day=store.summary_by("day", filters),
        freshness=store.freshness,
        detail=store.detail,
        selection=in_words(filters),
        made_at=time.time(),
        personal=not store.freshness.everybody or len(filters.users) == 1,
    )


def in_words(filters: Filters) -> str:
    """Which jobs were asked for: "user usr1, since 2026-11-08 05:20"."""
    lists = (
        ("user", filters.users),
        ("account", filters.accounts),
        ("partition", filters.partitions),
        ("model", filters.models),
        ("state", filters.states),
        ("node", filters.nodes),
        ("job", tuple(map(str, filters.jobs))),
    )
    words = [f"{name} {' or '.join(values)}" for name, values in lists if values]
    words += [f"since {minute(filters.since)}"] if filters.since is not None else []
    words += [f"until {minute(filters.until)}"] if filters.until is not None else []
    return ", ".join(words)
