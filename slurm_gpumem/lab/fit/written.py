"""Fit how wide requests for code that no text shows must be: `python -m slurm_gpumem.lab.fit.written`.

The hand-written networks of models/lab/handwritten are a group of their own. The correction's trees never
saw them; from how far their needs lie from the corrected peaks come the steps of the group's distribution and
the price of a job that does not fit, the lowest at which the group's coverage holds. Generated networks are
scored but teach nothing here: they are wilder than what people write.

Writes models/written.json (from all networks), models/lab/folds/written.json (each time without a part of the
networks) and the card models/written.md with the figures on networks that were held out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha1
from math import exp, log
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from slurm_gpumem.errors import GpumemError
from slurm_gpumem.estimators.corrected import estimator
from slurm_gpumem.estimators.corrected.anchors import anchors
from slurm_gpumem.estimators.corrected.choice import LEVELS, RequestPolicy, cheapest
from slurm_gpumem.estimators.corrected.unseen import WRITTEN, WRITTEN_FORMAT, unseen, written_from_json
from slurm_gpumem.lab.ground_truth import TOOLS, MeasuredRun, load_ground_truth, real_mib
from slurm_gpumem.lab.places import HANDWRITTEN, MODELS, WRITTEN_FOLDS
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary

COVERAGE = 0.96
"""What is asked of the group's requests: a point above what is promised, since the networks are few."""
PROMISED = 0.95
FOLDS = 5
_PRICES = (1e2, 1e7)
_HALVINGS = 24


@dataclass(frozen=True)
class Row:
    """One run as seen through one text."""

    fold: int
    generated: bool
    tool: str
    real: float
    peak: float
    spread: float
    share: float

    @property
    def step(self) -> float:
        """How far above its corrected peak the need was, in spreads."""
        return log(self.real / self.peak) / self.spread


def fold_of_written(row: Mapping[str, Any]) -> Optional[int]:
    """The fold without this network's class; None for a run of another data set."""
    family = str(row.get("family", ""))
    if not family.startswith("handwritten"):
        return None
    name = row["model"] if _is_generated(family) else row["build"]
    return int(sha1(str(name).encode()).hexdigest(), 16) % FOLDS


def _is_generated(family: str) -> bool:
    return "generated" in family


def rows() -> List[Row]:
    """Every run of the group, from every text with shapes that its network has."""
    truth = load_ground_truth(HANDWRITTEN)
    found: List[Row] = []
    parsed: Dict[Tuple[str, str], ModelSummary] = {}
    for run in truth.runs:
        for tool in (tool for tool in TOOLS if tool in truth.texts[run.summary]):
            try:
                key = (run.summary, tool)
                if key not in parsed:
                    parsed[key] = read_summary(truth.texts[run.summary][tool].rstrip("\n") + "\n")
                if parsed[key].has_shapes:
                    found.append(_row(run, tool, parsed[key]))
            except GpumemError:
                continue  # `gpumem accuracy` counts and names these
    return found


def _row(run: MeasuredRun, tool: str, summary: ModelSummary) -> Row:
    ask = estimator.AtBatchSizes.packaged(summary, run.job, run.gpu)
    peak = spread = 0.0
    for share, batch in anchors(run.job.batch_size):
        at = ask.at(batch).corrected
        peak += share * at.peak
        spread += share * log(at.usual_spread)
    fold = fold_of_written(run.row)
    assert fold is not None
    generated = _is_generated(str(run.row["family"]))
    real = real_mib(run, summary) - at.moved
    return Row(fold, generated, tool, real, peak, exp(spread), unseen(summary).share)


def fit(found: Sequence[Row]) -> Dict[str, Any]:
    """The group's distribution, and the lowest price at which what is asked holds."""
    taught = [row for row in found if not row.generated]
    steps = sorted(row.step for row in taught)
    table = tuple(_quantile(steps, level) for level in LEVELS)
    policy = RequestPolicy(table, 0.0, 1.0, PROMISED, 1.0)
    low, high = _PRICES
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if _held(taught, replace(policy, price_mib=middle)) else (middle, high)
    return {
        "format": WRITTEN_FORMAT,
        "policy": {"steps": list(table), "price": 0.0, "wider": 1.0, "coverage": PROMISED, "price_mib": high},
    }


def _held(found: Sequence[Row], policy: RequestPolicy) -> bool:
    return sum(_request(row, policy) >= row.real for row in found) >= COVERAGE * (len(found) + 1)


def _request(row: Row, policy: RequestPolicy) -> float:
    return max(row.peak, cheapest(row.peak, row.spread, policy))


def _quantile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def card(found: Sequence[Row], parts: Sequence[Mapping[str, Any]]) -> List[str]:
    """Markdown: the figures on networks that each fold's fit never saw."""
    policies = [written_from_json(part, "the fold just fitted") for part in parts]
    lines = [
        "# Requests for code that no text shows",
        "",
        "Fitted by `python -m slurm_gpumem.lab.fit.written` on `models/lab/handwritten`; every network below",
        "was answered by a fit without its class.",
        f"Meant to be exceeded by {1 - PROMISED:.0%} of jobs. The price of one that does not fit is in MiB,",
        "the same for small and large jobs: large jobs get narrower requests.",
        "",
        "| texts | runs | median / P90 | below need | Σ request / Σ need | > 1.5 × / > 2 × |",
        "|---|---|---|---|---|---|",
    ]
    for generated in (False, True):
        for tool in TOOLS:
            group = [row for row in found if row.generated == generated and row.tool == tool]
            if group:
                kind = "generated" if generated else "hand-written"
                lines.append(_line(f"{tool}, {kind}", group, policies))
    return lines


def _line(name: str, group: Sequence[Row], policies: Sequence[RequestPolicy]) -> str:
    errors = sorted(abs(row.peak / row.real - 1) for row in group)
    asked = [_request(row, policies[row.fold]) for row in group]
    over = [request / row.real for request, row in zip(asked, group)]
    return (
        f"| {name} | {len(group)} | {_quantile(errors, 0.5):.1%} / {_quantile(errors, 0.9):.1%} "
        f"| {_part(ratio < 1 for ratio in over)} | {sum(asked) / sum(row.real for row in group):.2f} "
        f"| {_part(ratio > 1.5 for ratio in over)} / {_part(ratio > 2 for ratio in over)} |"
    )


def _part(flags: Any) -> str:
    values = list(flags)
    return f"{sum(values) / len(values):.1%}"


def main() -> int:
    """Fit, write, and say how good it is on networks that were held out."""
    found = rows()
    parts = [fit([row for row in found if row.fold != number]) for number in range(FOLDS)]
    (MODELS / WRITTEN).write_text(json.dumps(fit(found)) + "\n")
    WRITTEN_FOLDS.write_text(json.dumps(parts) + "\n")
    lines = card(found, parts)
    (MODELS / "written.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
