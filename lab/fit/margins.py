"""Fit the margins of requests: `python -m lab.fit.margins [--rows DIR]`.

For every group of texts and for traces: how far above its peak a job's need lies, at each coverage, in units
that follow the job's spread, size and batch (estimators/margin.py). The powers of the units are
those that ask for least at the group's own coverage. A text is judged as if no model of
its family had been measured; a group is what the estimator itself makes of a text, so
hand-written networks of all data sets are one.

Runs of past blind checks count like all others: they were scored before they are used here.

Writes models/fitted/margins.json (from all), lab/data/folds/margins.json (without a part of the families and
one author's hand-written networks) and the card models/fitted/margins.md with the figures on what was held
out.
"""

from __future__ import annotations

import argparse
import json
from math import exp, log
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from lab.fit import folds
from lab.fit.margin_fit import Need, fit
from lab.fit.margins_card import card
from lab.fit.text_rows import Row, rows
from lab.ground_truth import load_ground_truth, load_ground_truth_rows
from lab.places import BLIND_CHECKS, FITTED, GROUND_TRUTH, HANDWRITTEN, MARGIN_FOLDS
from lab.score.trace_figures import load_figures
from lab.score.trace_score import measured_runs, real_mib
from slurm_gpumem.estimators import margin
from slurm_gpumem.estimators.corrected.estimator import CorrectedPeak, correct_peak
from slurm_gpumem.estimators.corrected.similar import Near, packaged

MOST_MIB = 1 << 20
"""A peak beyond a TiB is no estimate: no GPU has it, so such a job is refused."""


def needs_of_texts(folder: Path, kept: Optional[Path]) -> List[Need]:
    """Every run of a data set, from every text, each without similar models of its family."""
    known = packaged()
    measured = {row["key"]: row for row in load_ground_truth_rows(folder)}
    families: Dict[str, Set[int]] = {}
    for at, name in enumerate(known.models):
        families.setdefault(folds.group_of(name), set()).add(at)
    near: Dict[Tuple[str, Tuple[str, ...]], Near] = {}
    found: List[Need] = []
    for row in rows(load_ground_truth(folder), kept):
        key = (row.shown, row.classes)
        if key not in near:
            near[key] = known.near(row.shown, frozenset(row.classes))
        own = families.get(row.group, set())
        answers = [
            correct_peak(point.total_mib, point.conditions, near[key], row.batch, own) for point in row.points
        ]
        made = _need(row, answers, measured[row.key])
        if made.peak < MOST_MIB:
            found.append(made)
    return found


def _need(row: Row, answers: Sequence[CorrectedPeak], measured: Mapping[str, Any]) -> Need:
    shares = [point.share for point in row.points]
    kind = folds.kind_of_code(measured)
    return Need(
        group=row.margin,
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
    """Every traced run."""
    measured = measured_runs()
    checks = {key: folder.name for folder in BLIND_CHECKS for key in measured_runs((folder,))}
    found: List[Need] = []
    for key, traced in load_figures().items():
        row = measured.get(key)
        if row is None:
            continue
        kind = folds.kind_of_code(row)
        found.append(
            Need(
                group=margin.TRACE,
                fold=folds.fold_of_run(row),
                unit=folds.group_of(traced.model) if kind == "library" else traced.model,
                tool=margin.TRACE,
                kind=kind,
                author=folds.author_of(row) if kind == "hand-written" else "",
                peak=traced.total_mib,
                spread=traced.spread,
                batch=int(row["batch"]),
                need=real_mib(traced, row),
                moved=traced.moved_mib,
                check=checks.get(key, ""),
            )
        )
    return found


def main(argv: Optional[List[str]] = None) -> int:
    """Fit, write, and print how requests do on what was held out."""

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, help="folder that keeps the simulated rows, or has them")
    args = parser.parse_args(argv)
    needs = needs_of_traces()
    for folder in (GROUND_TRUTH, HANDWRITTEN, *BLIND_CHECKS):
        kept = args.rows / f"{folder.name}.jsonl.gz" if args.rows else None
        needs += needs_of_texts(folder, kept)
    whole = fit(needs)
    parts = [fit([one for one in needs if one.fold != number]) for number in range(folds.FOLDS)]
    (FITTED / margin.FILE).write_text(json.dumps(whole) + "\n")
    MARGIN_FOLDS.write_text(json.dumps(parts) + "\n")
    lines = card(needs, parts, whole)
    (FITTED / "margins.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
