"""Drawings as SVG: a plot's frame with its grid and labels, and the file around it. Nothing but text."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Sequence, Tuple

from slurm_gpumem.text import clipped

_LONGEST = 120
STYLE = """
.plot{font:13px system-ui,"Segoe UI",Roboto,Arial,sans-serif}
.plot .ground{fill:#fff}.plot text{fill:#5a6673}.plot .ink{fill:#1a2129}
.plot .title{font-size:20px;font-weight:600}
.plot .grid{stroke:#e3e8ed}.plot .axis{stroke:#1a2129}.plot .edge{stroke:#5a6673;stroke-dasharray:2 3}
"""


@dataclass(frozen=True)
class Frame:
    """Where values lie in a drawing: its size and margins, and the values at the plot's edges."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    across: Tuple[float, float]
    up: Tuple[float, float]

    @property
    def base(self) -> int:
        """The pixel row of the lower edge."""
        return self.height - self.bottom

    @property
    def end(self) -> int:
        """The pixel column of the right edge."""
        return self.width - self.right

    def x(self, value: float) -> float:
        """The pixel column of a value."""
        low, high = self.across
        return self.left + (value - low) / (high - low) * (self.end - self.left)

    def y(self, value: float) -> float:
        """The pixel row of a value."""
        low, high = self.up
        return self.base - (value - low) / (high - low) * (self.base - self.top)

    def level(self, value: float, label: str) -> str:
        """A line across at a value, its label at the left."""
        y = self.y(value)
        mark = text(self.left - 8, y + 4, label, anchor="end")
        return line((self.left, y), (self.end, y), "grid") + mark

    def column(self, value: float, label: str) -> str:
        """A line upwards at a value, its label below."""
        x = self.x(value)
        return line((x, self.top), (x, self.base), "grid") + text(x, self.base + 18, label, anchor="middle")


def line(start: Tuple[float, float], end: Tuple[float, float], kind: str) -> str:
    """A straight line; `kind` is a class of the style sheet."""
    (x1, y1), (x2, y2) = start, end
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text(x: float, y: float, words: str, kind: str = "", *, anchor: str = "", more: str = "") -> str:
    """Escaped words that start at a point on their base line; `more` are further attributes."""
    named = f' class="{kind}"' if kind else ""
    placed = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}"{placed}{more}>{escape(clipped(words, _LONGEST))}</text>'


def key(x: float, y: float, colour: str, words: str) -> str:
    """A square of a colour and what it stands for."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="12" height="12" rx="2" fill="{colour}"/>' + text(
        x + 18, y + 11, words, "ink"
    )


def document(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    """The whole drawing, as a file of its own or inside a page."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{escape(clipped(label, _LONGEST))}">',
            f"<style>{STYLE}</style>",
            f'<rect class="ground" width="{width}" height="{height}"/>',
            *parts,
            "</svg>\n",
        ]
    )
