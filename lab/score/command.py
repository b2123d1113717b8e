"""`make accuracy`: score every estimator on measured training runs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from lab.command import exit_code
from lab.ground_truth import TOOLS, GroundTruth, load_ground_truth
from lab.places import GROUND_TRUTH, shown
from lab.score.accuracy import Failure, Score, grouped, score, score_stored, worst
from lab.score.figures import figures
from lab.score.predictions import load_predictions
from slurm_gpumem.errors import UnknownNameError, UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.units import format_mib

CLASSES: Tuple[Tuple[str, int], ...] = (
    ("synthetic-mlp", 1),
    ("synthetic-mlp", 2),
    ("synthetic-cnn", 8),
    ("synthetic-transformer", 8),
)
"""Families of generated networks and the GiB of one class, as GPUMemNet has them."""
_MIB_PER_GIB = 1024
SCHEMA = "gpumem-accuracy/1"
ALL = "all"
CAPACITY = "capacity"
_COLUMNS = (
    ("median_error", "median"),
    ("p90_error", "P90"),
    ("under_request", "<req"),
    ("under_unwarned", "silent"),
    (CAPACITY, "Σ"),
    ("over_half", ">1.5×"),
    ("over_twice", ">2×"),
    ("over_reservation", "over"),
    ("shards_exact", "exact"),
    ("shards_too_few", "short"),
)
_LEGEND = """\
median, P90: absolute error of the peak. <req: runs that took more than the request; silent: without a
warning. Σ: all requests as a multiple of all needs, which is what Slurm counts. >1.5×, >2×: requests above
that multiple of the need; over: median of what they hold beyond it. exact, short: shards of {shard} MiB
asked for, against those needed. corrected, trace, *-refit-*: each model by a fit that saw neither it nor its
namesakes; trace: on those runs that were traced again (python -m lab.score.trace_rows)."""


def main(argv: List[str]) -> int:
    """Entry point."""
    return exit_code(lambda: _run(_parser().parse_args(argv)))


def _run(args: argparse.Namespace) -> int:
    if args.utilization:
        from lab.score.utilization_command import utilization_lines

        print("\n".join(utilization_lines()))
        return 0
    # What was stored was made from the fullest texts, so it has nothing to say of others.
    stored = {} if args.format else load_predictions()
    known = [*registry.estimator_names(), *stored]
    names = known if args.estimator == ALL else [args.estimator]
    unknown = [name for name in names if name not in known and name not in registry.ESTIMATORS]
    if unknown:
        raise UnknownNameError("estimator", unknown[0], known)
    truth = load_ground_truth(args.data)
    truth = GroundTruth(
        tuple(r for r in truth.runs if _wanted(r.row, args.where)), truth.texts, truth.left_out
    )
    if not truth.runs:
        raise UsageError(f"no run has {' and '.join(args.where)}")
    scores, failures = score(truth, [name for name in names if name not in stored], args.format)
    for name in names:
        scores += score_stored(truth, stored[name]) if name in stored else []
    if not scores:
        raise UsageError(
            f"no run could be scored; the first one: {failures[0].message if failures else 'none'}"
        )
    if args.json:
        print(json.dumps(_as_json(args, truth, names, scores, failures)))
    else:
        print("\n".join(_as_text(args, truth, names, scores, failures)))
    return 0


def _wanted(row: Any, conditions: Sequence[str]) -> bool:
    return all(str(row.get(key)) == value for key, _, value in (c.partition("=") for c in conditions))


# -- Text ----------------------------------------------------------------------------------------


def _as_text(
    args: argparse.Namespace,
    truth: GroundTruth,
    names: List[str],
    scores: List[Score],
    failures: List[Failure],
) -> List[str]:
    models = len({r.row.get("model", r.summary) for r in truth.runs})
    lines = [f"{len(truth.runs):,} runs of {models:,} models"]
    if truth.left_out:
        lines[0] += "; left out: " + ", ".join(f"{n:,} {why}" for why, n in sorted(truth.left_out.items()))
    lines += ["", *_table("", {"all": scores}, names, args.shard_mib)]
    for by in args.by:
        lines += ["", *_table(by, grouped(scores, by), names, args.shard_mib)]
    classes = class_lines(scores, names)
    lines += ["", *classes] if classes else []
    for name in names[: 1 if args.estimator == ALL else None]:
        lines += ["", *_worst_lines(name, [s for s in scores if s.estimator == name], args.worst)]
    if failures:
        lines += ["", *_failure_lines(failures)]
    return [*lines, "", *_LEGEND.format(shard=args.shard_mib).splitlines()]


def _table(by: str, groups: Dict[str, List[Score]], names: List[str], shard_mib: int) -> List[str]:
    left = max(len(by), *(len(group) for group in groups))
    middle = max(len("estimator"), *(len(name) for name in names))
    heads = "".join(f"{head:>7}" for _, head in _COLUMNS)
    lines = [f"{by:<{left}}  {'estimator':<{middle}} {'runs':>6}{heads}"]
    for group, members in groups.items():
        label = group
        for name in names:
            own = [s for s in members if s.estimator == name]
            if not own:
                continue
            values = asdict(figures(own, shard_mib))
            cells = "".join(f"{_cell(key, values[key]):>7}" for key, _ in _COLUMNS)
            lines.append(f"{label:<{left}}  {name:<{middle}} {len(own):>6}{cells}")
            label = ""
    return lines


def _cell(key: str, value: float) -> str:
    return f"{value:.2f}" if key == CAPACITY else _percent(value)


def _percent(value: float) -> str:
    percent = value * 100
    return f"{percent:.1f}%" if abs(percent) < 1000 else f"{percent:,.0f}%"


def _worst_lines(name: str, scores: List[Score], count: int) -> List[str]:
    lines = [f"farthest off ({name}), one run a model:"]
    for s in worst(scores, count):
        lines.append(
            f"  {s.error * 100:+7.1f} %  {s.run.key}: {format_mib(s.peak_mib)} estimated, "
            f"{format_mib(s.real_mib)} real ({format_mib(s.run.allocated_mib)} allocated)"
        )
    return lines


def _failure_lines(failures: List[Failure]) -> List[str]:
    by_message: Dict[str, List[Failure]] = {}
    for failure in failures:
        by_message.setdefault(f"{failure.estimator}: {failure.message}", []).append(failure)
    lines = ["no estimate:"]
    for message, members in sorted(by_message.items(), key=lambda item: -len(item[1])):
        lines.append(f"  {len(members)} x {message.splitlines()[0]} ({members[0].run.key})")
    return lines


# -- JSON ----------------------------------------------------------------------------------------


def _as_json(
    args: argparse.Namespace,
    truth: GroundTruth,
    names: List[str],
    scores: List[Score],
    failures: List[Failure],
) -> Dict[str, Any]:
    tables = {"all": {"all": scores}, **{by: grouped(scores, by) for by in args.by}}
    groups = [
        {"by": by, "group": group, "estimator": name, **asdict(figures(own, args.shard_mib))}
        for by, table in tables.items()
        for group, members in table.items()
        for name in names
        if (own := [s for s in members if s.estimator == name])
    ]
    return {
        "schema": SCHEMA,
        "runs": len(truth.runs),
        "left_out": dict(truth.left_out),
        "failed": len(failures),
        "groups": groups,
        "worst": {
            name: [
                {
                    "key": s.run.key,
                    "real_mib": s.real_mib,
                    "peak_mib": s.peak_mib,
                    "request_mib": s.request_mib,
                }
                for s in worst([s for s in scores if s.estimator == name], args.worst)
            ]
            for name in names
        },
    }


def _condition(text: str) -> str:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not field=value")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.score.command", description=__doc__)
    parser.add_argument("--estimator", default=ALL, metavar="NAME", help="one estimator instead of all")
    parser.add_argument(
        "--by",
        type=lambda text: [part for part in text.split(",") if part],
        default=["code", "family", "precision", "gpu"],
        metavar="FIELDS",
        help="group by these, comma-separated: code, input, code+input, family, gpu, source, part ...",
    )
    parser.add_argument(
        "--where", type=_condition, action="append", default=[], metavar="FIELD=VALUE", help="only such runs"
    )
    parser.add_argument(
        "--format",
        action="append",
        default=[],
        choices=TOOLS,
        help="score these summaries (repeatable; default: the fullest that a model has)",
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help=f"folder of measured runs ({shown(GROUND_TRUTH)})"
    )
    parser.add_argument("--worst", type=int, default=10, metavar="N", help="runs listed by name (10)")
    parser.add_argument("--shard-mib", type=int, default=1024, metavar="MIB", help="MiB per shard (1024)")
    parser.add_argument(
        "--utilization", action="store_true", help="instead: predicted utilization, and speeds in shared sets"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable, schema " + SCHEMA)
    return parser


def class_accuracy(scores: Sequence[Score], gib: int) -> float:
    """Share of runs whose estimated peak lies in the class of the measured one."""
    size = gib * _MIB_PER_GIB
    return sum(s.peak_mib // size == s.real_mib // size for s in scores) / len(scores)


def class_lines(scores: Sequence[Score], names: Sequence[str]) -> List[str]:
    """A table of all estimators; empty where no run is of these families."""
    cells: Dict[Tuple[str, Tuple[str, int]], str] = {}
    for name in names:
        for family, gib in CLASSES:
            own = [s for s in scores if s.estimator == name and s.run.row.get("family") == family]
            if own:
                cells[name, (family, gib)] = f"{class_accuracy(own, gib):.3f}"
    shown = [name for name in names if any(key[0] == name for key in cells)]
    columns = [column for column in CLASSES if any(key[1] == column for key in cells)]
    if not shown:
        return []
    heads = [f"{family[len('synthetic-') :]}, {gib} GiB" for family, gib in columns]
    width = max(len("estimator"), *map(len, shown))
    lines = ["generated networks: share of peaks in the right class of size", ""]
    lines[1] = f"{'estimator':<{width}}" + "".join(f"{head:>20}" for head in heads)
    for name in shown:
        lines.append(
            f"{name:<{width}}" + "".join(f"{cells.get((name, column), '-'):>20}" for column in columns)
        )
    return lines


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
