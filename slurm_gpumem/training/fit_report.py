"""The card of a fitted correction: its figures on models that each fold's fit never saw."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Callable, Dict, List, Mapping, Sequence

from slurm_gpumem.memory.accuracy import quantile
from slurm_gpumem.memory.correction.estimator import answer, joined, outside
from slurm_gpumem.memory.correction.folds import fold_of
from slurm_gpumem.memory.correction.trees import from_json
from slurm_gpumem.sizes import ceil_div
from slurm_gpumem.training.correction_rows import Row

SHARD_MIB = 1024


@dataclass(frozen=True)
class Held:
    """One row's answer from the fit that never saw its model."""

    row: Row
    real: int
    plain: int
    peak: int
    request: int
    strange: bool

    @property
    def surplus(self) -> int:
        """Shards asked for beyond those needed."""
        return ceil_div(self.request, SHARD_MIB) - ceil_div(self.real, SHARD_MIB)


def held_out(found: Sequence[Row], parts: Sequence[Mapping[str, Any]]) -> List[Held]:
    """Every row, answered by its fold."""
    corrections = [from_json(part, "the fold just fitted") for part in parts]
    answers: List[Held] = []
    for row in found:
        correction = corrections[fold_of(row.model)]
        strange = row.strange or any(outside(p.features, None, correction.ranges) for p in row.points)
        found_at = [
            answer(point.total_mib, point.features, row.moved_mib, correction, strange=strange)
            for point in row.points
        ]
        peak, request = joined([point.share for point in row.points], found_at)
        real, plain = round(row.real_mib) + row.moved_mib, round(row.total_mib) + row.moved_mib
        moved = row.moved_mib
        answers.append(
            Held(
                row, real, plain, round(peak) + moved, max(round(peak), ceil(request - 1e-9)) + moved, strange
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
    found: Sequence[Row], parts: Sequence[Mapping[str, Any]], sha256: str, card: Mapping[str, Any]
) -> List[str]:
    """The card as Markdown."""
    items = held_out(found, parts)
    lines = [
        "# The learned correction",
        "Written by `make fit` (`" + card["command"] + "`); do not edit. What it is: docs/estimation.md.",
        "",
        f"- data: {card['data']}; sha256 of rows and summaries `{card['data_sha256']}`",
        f"- `correction.json`: sha256 `{sha256}`, seed {card['seed']}",
        f"- coverage asked of the bound: {_coverage(card['coverage'])}",
        "- known gaps: one GPU type, one PyTorch version, synthetic data as input, no torch.compile",
        "",
        f"Figures in % of {card['folds']} folds; a model, its sizes and namesakes are in one fold.",
        "`request` is below the real need in `<req`, holds `over` more than it in the median, and makes",
        "as many shards of 1 GiB as needed or one more in `0/+1`.",
    ]
    groupings: Dict[str, Callable[[Held], str]] = {
        "text": lambda i: i.row.tool,
        "family (torchinfo_full)": lambda i: i.row.family if i.row.tool == "torchinfo_full" else "",
        "outside the measured range (torchinfo_full)": lambda i: (
            ("yes" if i.strange else "no") if i.row.tool == "torchinfo_full" else ""
        ),
    }
    for title, name_of in groupings.items():
        groups: Dict[str, List[Held]] = {}
        for item in items:
            groups.setdefault(name_of(item), []).append(item)
        groups.pop("", None)
        lines += [
            "",
            f"| {title} | rows | structural median | P90 | corrected median | P90 | <req | over | 0/+1 |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [figures_line(name, groups[name]) for name in sorted(groups)]
    return [*lines, "", "Farthest above the request, one run a model:", "", *_worst(items)]


def _coverage(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * share:.3g} %" for name, share in shares.items())


def _worst(items: Sequence[Held]) -> List[str]:
    seen: Dict[str, Held] = {}
    shaped = [item for item in items if item.row.tool != "print" and item.request < item.real]
    for item in sorted(shaped, key=lambda i: i.request / i.real):
        seen.setdefault(item.row.model, item)
    return [
        f"- {i.row.key} ({i.row.tool}): {i.real:,} MiB real, request {i.request:,}, structural {i.plain:,}"
        for i in list(seen.values())[:12]
    ]
