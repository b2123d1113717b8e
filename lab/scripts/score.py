"""Score traced scripts against their runs on the GPU.

    python -m lab.scripts.score [--later] [--as-traced]           one line for each list
    python -m lab.scripts.score LIST ... [--later] [--as-traced]  every script of these, together
    python -m lab.scripts.score rows.jsonl ...                    the same for rows in other files

Rows are those of lab/data/scripts/LIST.jsonl.xz; the rows of one name are put together. Scripts of lists with
strata (strata.py) have a line for each stratum and one in which each counts as often as it is found.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from lab.command import exit_code
from lab.places import SCRIPT_ROWS
from lab.rows import Row, read_rows
from lab.score.figures import Answered, figures
from lab.scripts.lists import LISTS
from lab.scripts.strata import STRATA, quantile, strata_of_scripts, weighted_share, weights
from slurm_gpumem import estimate
from slurm_gpumem.errors import UsageError
from slurm_gpumem.units import MIB

_ON_THE_CPU = 64 << 20
_NEVER_TRAINED = 1 << 30
"""A run that ended with an error and took less than this had not begun: little more than a context."""


@dataclass(frozen=True)
class Judged(Answered):
    """One script that was traced and run; sizes in MiB."""

    name: str
    real_mib: int
    peak_mib: int
    request_mib: int
    reserved: int
    context: int
    warned: bool
    seconds: float
    beyond: Optional[float]
    """Seconds of the trace beyond the script's own start, where that was measured."""
    phases: Sequence[str]
    to_the_end: Optional[bool] = None
    """Whether the trace came to the script's end; None: traced before traces said so."""


@dataclass(frozen=True)
class Result:
    """What became of the scripts of some lists."""

    judged: List[Judged] = field(default_factory=list)
    not_traced: List[str] = field(default_factory=list)
    failed: List[str] = field(default_factory=list)
    """They ended with an error on the GPU by themselves."""


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m lab.scripts.score", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="LIST", help=f"of {', '.join(LISTS)}, or files of rows")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--later", action="store_true", help="with what was traced again since")
    parser.add_argument("--as-traced", action="store_true", help="estimates as made by the trace's program")
    args = parser.parse_args(argv)
    return exit_code(lambda: _print(args))


def _print(args: argparse.Namespace) -> int:
    if args.rows:
        rows = load(args.rows, args.later)
        print("\n".join(lines(rows, args.gpu, args.as_traced)))
        return 0
    print("list            scripts  not traced  median     P90  below (silent)   sum  > 1.5   > 2")
    for name in LISTS:
        if not (SCRIPT_ROWS / f"{name}.jsonl.xz").exists():
            continue  # neither traced nor measured yet
        result = judge(load([name], args.later), args.gpu, args.as_traced)
        print(f"{name:<16}{len(result.judged):>7}{len(result.not_traced):>12}  " + _table_row(result.judged))
    return 0


def load(names: Iterable[str], later: bool = False) -> List[Row]:
    """The rows of lists or files by the scripts' names."""
    rows: Dict[str, Row] = {}
    for name in names:
        path = SCRIPT_ROWS / f"{name}.jsonl.xz" if name in LISTS else Path(name)
        if not path.exists():
            raise UsageError(f"{name} is no file of rows and no list; lists: {', '.join(LISTS)}")
        found = list(read_rows(path))
        for kind in ("traced", "again", "measured") if later else ("traced", "measured"):
            for row in found:
                if row["kind"] == kind:
                    rows.setdefault(row["name"], {}).update(row)
    return list(rows.values())


def judge(rows: Iterable[Row], gpu: str, as_traced: bool = False) -> Result:
    """Estimates beside needs; `as_traced`: with the estimates that were noted before the runs."""
    result = Result()
    for row in sorted(rows, key=lambda row: str(row["name"])):
        if row.get("process_bytes", 0) < _ON_THE_CPU:
            continue  # failed by itself, or never used the GPU
        ended = row["run_code"] not in (0, None)
        if ended and ("trace" not in row or row["process_bytes"] < _NEVER_TRAINED):
            result.failed.append(str(row["name"]))
        elif "trace" not in row:
            result.not_traced.append(str(row["name"]))
        else:
            result.judged.append(_judged(row, gpu, as_traced))
    return result


def _judged(row: Row, gpu: str, as_traced: bool) -> Judged:
    made = estimate(row["trace"], gpu=gpu)
    noted = as_traced and "peak_mib" in row  # the first list's were not
    reserved = round(row["reserved_bytes"] / MIB)
    context = made.parts["context"]
    seconds = float(row["trace_seconds"])
    unfinished = row["trace_facts"].get("unfinished")
    start = row.get("start_seconds")
    return Judged(
        name=str(row["name"]),
        real_mib=measured_need(row, context),
        peak_mib=row["peak_mib"] if noted else made.peak_mib,
        request_mib=row["request_mib"] if noted else made.request_mib,
        reserved=reserved,
        context=context,
        warned=bool(made.warnings),
        seconds=seconds,
        beyond=max(0.0, seconds - start) if start else None,
        phases=[name for name in row["trace_facts"]["phases"] if name in ("evaluate", "checkpoint")],
        to_the_end=None if unfinished is None else not unfinished,
    )


def measured_need(row: Row, context: int) -> int:
    """MiB that the process had at most."""
    # Workspaces that cuDNN tries for a moment are over between two looks at the process.
    process, reserved = float(row["process_bytes"]), float(row["reserved_bytes"])
    return max(round(process / MIB), round(reserved / MIB) + context)


def lines(rows: Sequence[Row], gpu: str, as_traced: bool = False) -> List[str]:
    """Every script, and their sums."""
    found = ["script                          need  traced  error  request  reserved error    s  phases seen"]
    result = judge(rows, gpu, as_traced)
    found += [_line(one) for one in result.judged]
    if not result.judged:
        return [*found, "no script was both traced and run", _traced_only(rows)]
    return [*found, _sums(result.judged), *_end(result.judged), *_strata(result), _times(result)]


def _line(one: Judged) -> str:
    traced = one.peak_mib - one.context
    return (
        f"{one.name:<29}{one.real_mib:>7}{one.peak_mib:>8}{100 * one.error:>+6.1f}%{one.request_mib:>8}"
        f"{one.reserved:>9}{100 * (traced / max(1, one.reserved) - 1):>+6.1f}%{one.seconds:>6.1f}  "
        + " ".join(one.phases)
    )


def _sums(judged: Sequence[Judged]) -> str:
    one, (half, most) = figures(judged), _errors(judged)
    silent = [each.name for each in judged if each.below and not each.warned]
    return (
        f"{one.count} scripts: median {half:.1f} %, P90 {most:.1f} %; "
        f"request below need {round(one.under_request * one.count)} ({100 * one.under_request:.1f} %), "
        f"without a warning {len(silent)}"
        + (f" ({', '.join(silent)}); " if silent else "; ")
        + f"sum of requests / sum of needs {one.capacity:.2f}; "
        f"> 1.5 x {round(one.over_half * one.count)}, > 2 x {round(one.over_twice * one.count)}; "
        f"shards exact {round(one.shards_exact * one.count)}"
    )


def _errors(judged: Sequence[Judged]) -> Tuple[float, float]:
    """Median and P90 in percent; P90 is a script's own error, for lists are short."""
    sizes = sorted(100 * abs(one.error) for one in judged)
    return median(sizes), sizes[int(0.9 * len(sizes))]


def _end(judged: Sequence[Judged]) -> List[str]:
    """How many were followed to their end, and how good these are."""
    known = [one for one in judged if one.to_the_end is not None]
    ended = [one for one in known if one.to_the_end]
    if not known:
        return []
    said = f"followed to the end: {len(ended)} of {len(known)} ({100 * len(ended) / len(known):.0f} %)"
    if ended:
        half, most = _errors(ended)
        said += f", of these median {half:.1f} %, P90 {most:.1f} %"
    missed = ", ".join(one.name for one in known if not one.to_the_end)
    return [said + (f"; not: {missed}" if missed else "")]


def _strata(result: Result) -> List[str]:
    """A line for each stratum and the weighted one, where every script has one."""
    of = strata_of_scripts()
    names = [*(one.name for one in result.judged), *result.not_traced]
    if {of.get(name) for name in names} != set(STRATA):
        return []
    parts = {stratum: [one for one in result.judged if of[one.name] == stratum] for stratum in STRATA}
    found = [f"{stratum}: {_sums(parts[stratum])}" for stratum in STRATA if parts[stratum]]
    if not all(parts.values()):
        return found
    weighed = weights(result.judged, lambda one: of[one.name])
    sizes = [(weight, abs(one.error)) for weight, one in weighed]
    needs = sum(weight * one.real_mib for weight, one in weighed)
    below = 100 * weighted_share((weight, one.below) for weight, one in weighed)
    silent = weighted_share((weight, one.below and not one.warned) for weight, one in weighed)
    wide = weighted_share((weight, one.request_mib > 2 * one.real_mib) for weight, one in weighed)
    traced = weighted_share((w, name not in result.not_traced) for w, name in weights(names, of.__getitem__))
    said = (
        f"weighted by how common each is: median {100 * quantile(sizes, 0.5):.1f} %, "
        f"P90 {100 * quantile(sizes, 0.9):.1f} %; request below need {below:.1f} %, "
        f"without a warning {100 * silent:.1f} %; sum of requests / sum of needs "
        f"{sum(weight * one.request_mib for weight, one in weighed) / needs:.2f}; "
        f"> 2 x {100 * wide:.1f} %; not traced {100 * (1 - traced):.1f} %"
    )
    if all(one.to_the_end is not None for one in result.judged):
        ended = weighted_share((weight, bool(one.to_the_end)) for weight, one in weighed)
        said += f"; followed to the end {100 * ended:.0f} %"
    return [*found, said]


def _table_row(judged: Sequence[Judged]) -> str:
    one, (half, most) = figures(judged), _errors(judged)
    below, silent, half_more, twice = (
        round(share * one.count)
        for share in (one.under_request, one.under_unwarned, one.over_half, one.over_twice)
    )
    return (
        f"{half:>4.1f} %{most:>6.1f} %{below:>7} ({silent:>2})    {one.capacity:>8.2f}"
        f"{half_more:>7}{twice:>6}"
    )


def _times(result: Result) -> str:
    missing, ended = ", ".join(result.not_traced), ", ".join(result.failed)
    of = len(result.not_traced) + len(result.judged)
    beyond = [one.beyond for one in result.judged if one.beyond is not None]
    said = f"not traced: {len(result.not_traced)} of {of} ({missing or 'none'}); "
    said += f"time to trace: median {median(one.seconds for one in result.judged):.1f} s"
    if beyond:
        said += f", beyond the script's own start {median(beyond):.1f} s ({len(beyond)} scripts)"
    return said + (f"; left out, ended with an error on the GPU: {ended}" if ended else "")


def _traced_only(rows: Sequence[Row]) -> str:
    """Of rows that were not measured: how many were traced, and how long that took."""
    traced = [row for row in rows if "trace" in row]
    failed = sorted(str(row["name"]) for row in rows if "trace_error" in row and "trace" not in row)
    said = f"traced: {len(traced)} of {len(traced) + len(failed)} (not: {', '.join(failed) or 'none'})"
    if not traced:
        return said
    onward = [row["trace_seconds"] - row["trace_first_step"] for row in traced if row.get("trace_first_step")]
    after = f", {median(onward):.1f} s of it after the first optimizer step" if onward else ""
    return f"{said}; time to trace: median {median(row['trace_seconds'] for row in traced):.1f} s{after}"


if __name__ == "__main__":
    raise SystemExit(main())
