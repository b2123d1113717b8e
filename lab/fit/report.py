"""The card of a fitted correction: its figures on models that each fold's fit never saw."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Callable, Dict, List, Mapping, Sequence

from lab.fit.correction_rows import Row
from lab.fit.folds import fold_of_name
from lab.fit.relatives_of_rows import NeighboursOfRows
from lab.score.accuracy import quantile
from slurm_gpumem.estimators.corrected.estimator import correct_peak, joined
from slurm_gpumem.estimators.corrected.features import KNOWN
from slurm_gpumem.estimators.coverage import between
from slurm_gpumem.estimators.trees import from_json
from slurm_gpumem.estimators.width import packaged as packaged_widths
from slurm_gpumem.units import ceil_div

SHARD_MIB = 1024


@dataclass(frozen=True)
class Held:
    """One row's answer from the fit that never saw its model."""

    row: Row
    real: int
    plain: int
    peak: int
    request: int

    @property
    def surplus(self) -> int:
        """Shards asked for beyond those needed."""
        return ceil_div(self.request, SHARD_MIB) - ceil_div(self.real, SHARD_MIB)


def held_out(
    found: Sequence[Row],
    neighbours: NeighboursOfRows,
    parts: Sequence[Mapping[str, Any]],
    *,
    lonely: bool = False,
) -> List[Held]:
    """Every row, answered by its fold; `lonely`: as if no model of its family had been measured."""
    corrections = [from_json(part, "the fold just fitted", KNOWN) for part in parts]
    # The widths in force: `lab.fit.widths` fits them to this correction afterwards.
    widths = packaged_widths()
    told = [neighbours.without(number, lonely) for number in range(len(parts))]
    answers: List[Held] = []
    for index, row in enumerate(found):
        number = fold_of_name(row.model)
        found_at = [
            correct_peak(point.total_mib, point.features, runs, corrections[number], row.batch)
            for point, runs in zip(row.points, told[number][index])
        ]
        wide = widths[row.wide]
        peak, requests = joined([point.share for point in row.points], found_at, (), wide)
        moved = row.moved_mib
        answers.append(
            Held(
                row,
                real=round(row.real_mib) + moved,
                plain=round(row.total_mib) + moved,
                peak=round(peak) + moved,
                request=max(round(peak), ceil(between(requests, wide.coverage) - 1e-9)) + moved,
            )
        )
    return answers


def figures_line(name: str, items: Sequence[Held]) -> str:
    """One row of the card's tables."""
    before = sorted(abs(i.plain / i.real - 1) for i in items)
    errors = sorted(abs(i.peak / i.real - 1) for i in items)
    over = sorted(i.request / i.real - 1 for i in items)
    cells = [
        quantile(before, 0.5),
        quantile(before, 0.9),
        quantile(errors, 0.5),
        quantile(errors, 0.9),
        sum(i.request < i.real for i in items) / len(items),
        quantile(over, 0.5),
        sum(i.surplus in (0, 1) for i in items) / len(items),
    ]
    return f"| {name} | {len(items):,} | " + " | ".join(f"{100 * cell:.1f}" for cell in cells) + " |"


def report_lines(
    found: Sequence[Row],
    neighbours: NeighboursOfRows,
    parts: Sequence[Mapping[str, Any]],
    sha256: str,
    card: Mapping[str, Any],
) -> List[str]:
    """The card as Markdown."""
    items = held_out(found, neighbours, parts)
    strangers = held_out(found, neighbours, parts, lonely=True)
    lines = [
        "# The learned correction",
        "Written by `make fit` (`" + card["command"] + "`); do not edit. See docs/estimation.md.",
        "",
        f"- data: {card['data']}; sha256 of rows and summaries `{card['data_sha256']}`",
        f"- `correction.json`: sha256 `{sha256}`, seed {card['seed']}",
        "- known gaps: one GPU type, one PyTorch version, synthetic data as input, no torch.compile",
        "",
        f"Figures in % of {card['folds']} folds; a model and its namesakes are in one fold.",
        "The second table shows the results as if no model of the same family had been measured.",
        "`<req`: requests below the real need. `over`: median of what the request exceeds the need by.",
        "`0/+1`: requests with as many shards of 1 GiB as needed or one more.",
    ]
    by_text: Callable[[Held], str] = lambda i: i.row.tool  # noqa: E731
    lines += [*_table("text", items, by_text), *_table("text, family not measured", strangers, by_text)]
    groupings: Dict[str, Callable[[Held], str]] = {
        "family (torchinfo_full)": lambda i: i.row.family if i.row.tool == "torchinfo_full" else "",
    }
    for title, name_of in groupings.items():
        lines += _table(title, items, name_of)
    return [*lines, "", "Furthest above the request, one run per model:", "", *_worst(items)]


def _table(title: str, items: Sequence[Held], name_of: Callable[[Held], str]) -> List[str]:
    groups: Dict[str, List[Held]] = {}
    for item in items:
        groups.setdefault(name_of(item), []).append(item)
    groups.pop("", None)
    return [
        "",
        f"| {title} | rows | structural median | P90 | corrected median | P90 | <req | over | 0/+1 |",
        "|---|---|---|---|---|---|---|---|---|",
        *(figures_line(name, groups[name]) for name in sorted(groups)),
    ]


def _worst(items: Sequence[Held]) -> List[str]:
    seen: Dict[str, Held] = {}
    shaped = [item for item in items if item.row.tool != "print" and item.request < item.real]
    for item in sorted(shaped, key=lambda i: i.request / i.real):
        seen.setdefault(item.row.model, item)
    return [
        f"- {i.row.key} ({i.row.tool}): {i.real:,} MiB real, request {i.request:,}, structural {i.plain:,}"
        for i in list(seen.values())[:12]
    ]
