"""What a kit's file says: a table for a terminal, and its row on docs/measured-gpus.md."""

from __future__ import annotations

import statistics
from typing import Iterable, List

from slurm_gpumem.formats.kit_file import KitFile, KitRow

HEAD = (
    "| card | driver, PyTorch | context, MiB | limit kept | ends survived | trainings: median, worst error | "
    "below need |",
    "|---|---|---|---|---|---|---|",
)
_NONE = "not tried"


def table_lines(kit: KitFile) -> List[str]:
    """Everything in it."""
    lines = []
    if kit.gpu is not None:
        gpu = kit.gpu
        lines.append(
            f"{gpu.name}, {gpu.memory_mib:,} MiB, driver {gpu.driver}, CUDA {gpu.cuda}, torch {gpu.torch}"
        )
    if kit.context is not None:
        seen = kit.context
        lines.append(
            f"context {seen.both_mib} MiB: bare {seen.bare_mib}, convolutions {seen.conv_mib}, matrix "
            f"products {seen.matmul_mib}; rounding {'' if seen.rounds_as_simulated else 'NOT '}as simulated"
        )
    width = max((len(row.what) for row in kit.rows), default=0)
    lines += ["", *(_row_line(row, width) for row in kit.rows), ""]
    width = max((len(one.name) for one in kit.trainings), default=0)
    lines.append(f"{'training':<{width}}  measured  estimated  request")
    for one in kit.trainings:
        numbers = (one.measured_mib, one.peak_mib, one.request_mib)
        shown = [f"{number:,}" if number is not None else "-" for number in numbers]
        said = f"{one.error:+.1%}{'  BELOW NEED' if one.below_need else ''}" if one.compared else one.why
        lines.append(f"{one.name:<{width}}  {shown[0]:>8}  {shown[1]:>9}  {shown[2]:>7}  {said}")
    return [*lines, "", trainings_text(kit), f"{kit.seconds} s, gpumem {kit.version}, {kit.date}"]


def trainings_text(kit: KitFile) -> str:
    """All trainings in one line."""
    compared = [one for one in kit.trainings if one.compared]
    if not compared:
        return "no training was compared with its estimate"
    low = sum(one.below_need for one in compared)
    return f"{len(compared)} of {len(kit.trainings)} trainings: peak off by {_errors(kit)}; {low} below need"


def page_row(kit: KitFile) -> str:
    """Its row of the page."""
    gpu, context = kit.gpu, kit.context
    compared = [one for one in kit.trainings if one.compared]
    cells = (
        gpu.name if gpu else "?",
        f"{gpu.driver}, {gpu.torch}" if gpu else "?",
        str(context.both_mib) if context else _NONE,
        _held(row for row in kit.rows if row.part == "limits" and row.promised),
        _held(row for row in kit.rows if row.part == "ends" and row.promised),
        f"{len(compared)}: {_errors(kit)}" if compared else _NONE,
        str(sum(one.below_need for one in compared)) if compared else _NONE,
    )
    return f"| {' | '.join(cells)} |"


def _row_line(row: KitRow, width: int) -> str:
    if not row.tried:
        return f"{row.part:<12}  {row.what:<{width}}  not tried: {row.said}"
    mark = "DID NOT HOLD  " if row.failed else "" if row.promised else "not promised  "
    return f"{row.part:<12}  {row.what:<{width}}  {row.held} of {row.tried}  {mark}{row.said}"


def _held(rows: Iterable[KitRow]) -> str:
    tried = [row for row in rows if row.tried]
    return f"{sum(row.held for row in tried)} of {sum(row.tried for row in tried)}" if tried else _NONE


def _errors(kit: KitFile) -> str:
    errors = [abs(one.error) for one in kit.trainings if one.compared]
    return f"{statistics.median(errors):.1%}, {max(errors):.1%}"
