"""Fit how wide requests must be: `python -m lab.fit.widths [--rows FILE]`.

For every group of texts and for traces: how far above its peak a job's need lies, at each coverage, in units
that follow the job's spread, size and batch (estimators/width.py). The powers of the units are
those that ask for least at the group's own coverage. A text is judged by trees that never saw its model, as
if no model of its family had been measured; a group is what the estimator itself makes of a text, so
hand-written networks of all data sets are one.

Runs of past blind checks count like all others: they were scored before they are used here.

Writes models/widths.json (from all), lab/data/folds/widths.json (without a part of the families and one
author's hand-written networks) and the card models/widths.md with the figures on what was held out.
"""

from __future__ import annotations

import argparse
import json
from math import exp, log
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from lab.fit import folds
from lab.fit.correction_rows import Row, rows
from lab.fit.relatives_file import only
from lab.fit.width_fit import Need, fit
from lab.fit.widths_card import card
from lab.ground_truth import load_ground_truth, load_ground_truth_rows
from lab.places import BLIND_CHECKS, GROUND_TRUTH, HANDWRITTEN, MODELS, WIDTH_FOLDS
from lab.score.trace_figures import load_figures
from lab.score.trace_score import beyond_peak, measured_runs
from slurm_gpumem.estimators import width
from slurm_gpumem.estimators.corrected.estimator import CorrectedPeak, correct_peak
from slurm_gpumem.estimators.corrected.estimator import group_of as shown_group
from slurm_gpumem.estimators.corrected.relatives import neighbour_runs, packaged
from slurm_gpumem.estimators.traced import learned
from slurm_gpumem.units import MIB

MOST_MIB = 1 << 20
"""A peak beyond a TiB is no estimate: no GPU has it, so such a job is refused."""


def needs_of_texts(folder: Path, kept: Optional[Path]) -> List[Need]:
    """Every run of a data set, from every text, each by trees and relatives without its model."""
    corrections = folds.load_folds()
    known = [
        only(packaged(), lambda name, number=number: folds.fold_of_name(name) != number)  # type: ignore[misc]
        for number in range(folds.FOLDS)
    ]
    measured = {row["key"]: row for row in load_ground_truth_rows(folder)}
    found: List[Need] = []
    near: Dict[Tuple[int, str, Tuple[str, ...]], Any] = {}
    family: Dict[Tuple[int, str], frozenset[int]] = {}
    for row in rows(load_ground_truth(folder), kept):
        number = folds.fold_of_name(row.model)
        shown = shown_group(row.points[0].features)
        key = (number, shown, row.classes)
        if key not in near:
            near[key] = known[number].near(shown, frozenset(row.classes))
        if (number, row.group) not in family:
            models = known[number].models
            family[number, row.group] = frozenset(
                at for at, name in enumerate(models) if folds.group_of(name) == row.group
            )
        left_out = family[number, row.group]
        answers = [
            correct_peak(
                point.total_mib,
                point.features,
                neighbour_runs(near[key], point.features, left_out),
                corrections[number],
                row.batch,
            )
            for point in row.points
        ]
        made = _need(row, answers, measured[row.key])
        if made.peak < MOST_MIB:
            found.append(made)
    return found


def _need(row: Row, answers: Sequence[CorrectedPeak], measured: Mapping[str, Any]) -> Need:
    shares = [point.share for point in row.points]
    kind = folds.kind_of_code(measured)
    return Need(
        group=row.wide,
        fold=folds.fold_of_run(measured),
        unit=row.group if kind == "library" else row.model,
        tool=row.tool,
        kind=kind,
        author=folds.author_of(measured) if kind == "hand-written" else "",
        peak=sum(share * answer.peak for share, answer in zip(shares, answers)),
        spread=exp(sum(share * log(answer.spread) for share, answer in zip(shares, answers))),
        batch=row.batch,
        need=row.real_mib,
        moved=row.moved_mib,
    )


def needs_of_traces() -> List[Need]:
    """Every traced run, its spread by trees without its family."""
    measured = measured_runs()
    checks = {key: folder.name for folder in BLIND_CHECKS for key in measured_runs((folder,))}
    corrections = folds.load_trace_folds()
    found: List[Need] = []
    for key, traced in load_figures().items():
        row = measured.get(key)
        if row is None:
            continue
        total = traced.reserved_bytes / MIB + learned.REFERENCE_CONTEXT_MIB
        kind = folds.kind_of_code(row)
        found.append(
            Need(
                group=learned.GROUP,
                fold=folds.fold_of_run(row),
                unit=folds.group_of(traced.model) if kind == "library" else traced.model,
                tool=learned.GROUP,
                kind=kind,
                author=folds.author_of(row) if kind == "hand-written" else "",
                peak=total,
                spread=learned.spread_of(traced.features, corrections[folds.fold_of(traced.model)]),
                batch=int(row["batch"]),
                need=total * exp(beyond_peak(traced, row)),
                moved=traced.context_mib - learned.REFERENCE_CONTEXT_MIB,
                check=checks.get(key, ""),
            )
        )
    return found


def main(argv: Optional[List[str]] = None) -> int:
    """Fit, write, and say how wide requests are on what was held out."""

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, help="folder that keeps the simulated rows, or has them")
    args = parser.parse_args(argv)
    needs = needs_of_traces()
    for folder in (GROUND_TRUTH, HANDWRITTEN, *BLIND_CHECKS):
        kept = args.rows / f"{folder.name}.jsonl.gz" if args.rows else None
        needs += needs_of_texts(folder, kept)
    whole = fit(needs)
    parts = [fit([one for one in needs if one.fold != number]) for number in range(folds.FOLDS)]
    (MODELS / width.FILE).write_text(json.dumps(whole) + "\n")
    WIDTH_FOLDS.write_text(json.dumps(parts) + "\n")
    lines = card(needs, parts, whole)
    (MODELS / "widths.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
