"""The timeline of `gpumem why` as a PNG file, drawn by matplotlib (extra `[plot]`)."""

from __future__ import annotations

import io

from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.explain.reasons import PeakReasons
from slurm_gpumem.report.why.series import COLOURS, present, sampled
from slurm_gpumem.report.why.svg import heading, peak_label
from slurm_gpumem.terminal.chart import ticks
from slurm_gpumem.text import printable
from slurm_gpumem.units import MIB

_COLUMNS = 1100
_INCHES, _DPI = (12.0, 6.4), 100


def need_matplotlib() -> None:
    """UsageError where it is missing, before any work is done."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(
            "--png needs matplotlib, which is not installed for this Python.\n"
            "pip install 'slurm-gpumem[plot]', or use --svg"
        ) from None


def why_png(reasons: PeakReasons) -> bytes:
    """Live memory by category over the step, with phases and the peak marked."""
    need_matplotlib()
    # A Figure of its own: pyplot would look for a display.
    from matplotlib.figure import Figure

    timeline = reasons.timeline
    title, job = map(_plain, heading(reasons))
    points = sampled(timeline, _COLUMNS)
    shown = [number for number, name in enumerate(COLOURS) if name in present(timeline)]
    names = [list(COLOURS)[number] for number in shown]
    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.stackplot(
        [at for at, _ in points],
        [[sizes[number] / MIB for _, sizes in points] for number in shown],
        colors=[COLOURS[name] for name in names],
        labels=names,
        linewidth=0,
    )
    top = timeline.peak_bytes / MIB
    axes.annotate(
        peak_label(timeline), (timeline.peak_point, top), xytext=(0, 22), textcoords="offset points",
        arrowprops={"arrowstyle": "-", "linewidth": 0.8, "relpos": (0, 0)},
    )  # fmt: skip
    marks = ticks(max(top * 1.12, 1.0))
    axes.set_yticks([value for value, _ in marks], [label for _, label in marks])
    spans = [span for span in timeline.spans if span.last > span.first]
    axes.set_xticks([span.first for span in spans], [span.name for span in spans], ha="left")
    axes.set_xlim(0, max(1, len(timeline.points)))
    axes.set_ylim(0, max(top * 1.12, 1.0))
    axes.grid(axis="y", color="#e3e8ed")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(f"{title}\n{job}", loc="left")
    figure.legend(loc="outside lower left", ncols=len(names) or 1, frameon=False)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def _plain(text: str) -> str:
    """A name is a name: matplotlib would read what stands between dollars as mathematics."""
    return printable(text).replace("$", r"\$")
