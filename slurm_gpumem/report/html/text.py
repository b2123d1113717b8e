"""Numbers and names as the page writes them; names come from users and are made harmless here."""

from __future__ import annotations

import html
import time
from typing import Optional

_LONGEST = 64


def clean(text: str, longest: int = _LONGEST) -> str:
    """Printable characters only (no controls, bidi overrides or lone surrogates), and not too many."""
    if len(text) <= longest and text.isprintable():
        return text
    shown = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[: longest + 1]
    )
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def escaped(text: str, longest: int = _LONGEST) -> str:
    """The same, for the text and the attributes of a page."""
    return html.escape(clean(text, longest), quote=True)


def gib(mib: Optional[float]) -> str:
    """ "11.6", in GiB; empty when it is not known."""
    return "" if mib is None else f"{mib / 1024:.1f}"


def percent(part: Optional[float], *, sign: bool = False) -> str:
    """ "+3 %" of 0.03."""
    if part is None:
        return ""
    whole = round(part * 100)
    # Typographic minus: it is as wide as the plus, so that columns line up.
    return (f"{whole:+d} %" if sign and whole else f"{whole} %").replace("-", "−")


def hours(seconds: float) -> str:
    """GPU-hours, with a decimal where there are few."""
    value = seconds / 3600
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"


def duration(seconds: Optional[float]) -> str:
    """ "4 s", "12 min", "3.1 h", "2.0 d"."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"


def energy(joules: Optional[float]) -> str:
    """In the unit that needs the fewest digits."""
    if joules is None:
        return ""
    wh = joules / 3600
    return f"{wh / 1000:,.1f} kWh" if wh >= 1000 else f"{wh:.0f} Wh" if wh >= 10 else f"{wh:.2f} Wh"


def moment(at: Optional[float]) -> str:
    """Local time of the cluster, to the minute."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def count(number: int, one: str, many: Optional[str] = None) -> str:
    """ "1 job", "1,200 jobs"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
