"""The figures of a data set's card, counted from its files.

python -m lab.collect.describe lab/data/ground-truth
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

from lab.collect.gather import Gathered
from lab.collect.sample import load_jobs
from lab.command import exit_code
from lab.ground_truth import TOOLS
from lab.places import PLANS
from slurm_gpumem.errors import UsageError

Row = Dict[str, Any]
_GIB = 1 << 30
_LONGEST_REASON = 110


_LONG_SECONDS = 2.9
"""A reading over three windows of a second, which end a few milliseconds early or late."""


def describe(folder: Path) -> List[str]:
    """Markdown: what was measured, with what, and what is missing."""
    data = Gathered()
    data.take(folder)
    rows = [row for by_key in data.rows.values() for row in by_key.values()]
    if not rows:
        raise UsageError(f"{folder}: no rows there")
    good = [row for row in rows if not row.get("error")]
    real = [row for row in rows if not row["family"].startswith("synthetic")]
    lines = [
        f"{len(rows):,} runs of {_models(rows):,} models, {len(good):,} of them good; real architectures: "
        f"{len(real):,} runs of {_models(real):,} models, {_most_common(rows)}.",
        f"Process memory from {_gib(good, min)} to {_gib(good, max)} GiB.",
        "",
        *_plan(data),
        "",
        *_runs(data),
    ]
    for title, of in _GROUPS.items():
        lines += ["", *_table(title, Counter(of(row) for row in rows))]
    toggled = Counter(_toggles(row) for row in data.rows.get("toggles", {}).values())
    if toggled:
        lines += ["", *_table("toggles (configuration toggles)", toggled)]
    lines += ["", *_failures(rows), "", *_tools(list(data.summaries.values()))]
    busy = [row["utilization"] for row in rows if row.get("utilization")]
    if busy:
        long = sum(1 for reading in busy if reading["seconds"] >= _LONG_SECONDS)
        levels = sorted(reading["sm_active"] for reading in busy)
        spread = sorted(reading["sm_active_spread"] for reading in busy if "sm_active_spread" in reading)
        lines += [
            "",
            f"{len(busy)} runs with utilization, {long} of them over 3 s: SM activity from {levels[0]:.0f} "
            f"to {levels[-1]:.0f} %, median {levels[len(levels) // 2]:.0f} %; standard deviation of the "
            f"three seconds of a run: median {spread[len(spread) // 2]:.1f} points, 95 % of runs within "
            f"{spread[int(0.95 * len(spread))]:.1f}.",
        ]
    without = sorted({row["summary"] for row in good} - set(data.summaries))
    if without:
        lines += ["", f"{len(without)} models with input size have no summary: {', '.join(without)}"]
    return lines


def _toggles(row: Row) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(row["toggles"].items())) or "none"


_GROUPS: Dict[str, Callable[[Row], str]] = {
    "family": lambda row: str(row["family"]),
    "source": lambda row: str(row["source"]),
    "precision": lambda row: str(row["precision"]),
    "optimizer": lambda row: str(row["optimizer"]),
}


def _models(rows: Sequence[Row]) -> int:
    return len({row["model"] for row in rows})


def _most_common(rows: Sequence[Row]) -> str:
    model, count = Counter(row["model"] for row in rows).most_common(1)[0]
    return f"no model more than {count / len(rows):.1%} of the rows ({model})"


def _gib(rows: Sequence[Row], pick: Callable[[Iterable[int]], int]) -> str:
    sizes = [row["process_bytes"] for row in rows if row.get("process_bytes")]
    return f"{pick(sizes) / _GIB:.1f}" if sizes else "?"


def _plan(data: Gathered) -> List[str]:
    lines = ["| configuration | planned | measured | still to do |", "|---|---|---|---|"]
    for config, rows in sorted(data.rows.items()):
        path = PLANS / f"{config}.toml"
        planned = {job.key for job in load_jobs(path)} if path.exists() else set()
        left = len(planned - {key for key, _ in rows})
        lines.append(f"| {config} | {len(planned):,} | {len(rows):,} | {left:,} |")
    return lines


def _runs(data: Gathered) -> List[str]:
    counts = Counter(row["run"] for rows in data.rows.values() for row in rows.values())
    lines = ["| measured (UTC) | GPU | driver | CUDA, cuDNN | libraries | rows | `collect …` |"]
    lines.append("|---|---|---|---|---|---|---|")
    for run in sorted(counts):
        about = data.abouts[run]
        libraries = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        lines.append(
            f"| {about['when']} | {about.get('gpu', 'none')} | {about.get('driver', '')} | {about['cuda']}, "
            f"{about.get('cudnn', '')} | {libraries} | {counts[run]:,} | `{about['command']}` |"
        )
    return lines


def _table(title: str, counts: Dict[str, int]) -> List[str]:
    lines = [f"| {title} | rows |", "|---|---|"]
    return lines + [f"| {name} | {count:,} |" for name, count in sorted(counts.items(), key=_rank)]


def _rank(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _failures(rows: Sequence[Row]) -> List[str]:
    failed: Dict[str, List[str]] = {}
    for row in rows:
        if row.get("error"):
            reason = "out of memory" if row.get("oom") else str(row["error"])[:_LONGEST_REASON]
            failed.setdefault(reason.replace("|", "/"), []).append(row["key"])
    lines = ["| failed with | rows | which |", "|---|---|---|"]
    for reason, keys in sorted(failed.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"| {reason} | {len(keys)} | {', '.join(sorted(keys))} |")
    return lines


def _tools(summaries: Sequence[Row]) -> List[str]:
    lines = [f"| tool | texts of {len(summaries):,} | failed | commonest failures |", "|---|---|---|---|"]
    for tool in TOOLS:
        made = sum(1 for row in summaries if isinstance(row.get(tool), str))
        errors = Counter(str(row[f"{tool}_error"])[:60] for row in summaries if row.get(f"{tool}_error"))
        common = "; ".join(f"{count} × {text}" for text, count in errors.most_common(3)).replace("|", "/")
        lines.append(f"| {tool} | {made:,} | {sum(errors.values()):,} | {common} |")
    return lines


def main(argv: Optional[List[str]] = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.collect.describe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="a data set")
    folder = parser.parse_args(argv).folder
    return exit_code(lambda: _print(describe(folder)))


def _print(lines: Sequence[str]) -> int:
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
