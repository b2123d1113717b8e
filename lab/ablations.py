"""What each mechanism of the estimate buys on blind data: the same jobs with it and without it.

    python -m lab.ablations [LIST ...] [--texts DIR ...] [--only MECHANISM ...] [--scripts]

LIST: lists of scripts (default: the blind ones), as traced before any was measured. --texts: sets of measured
runs with the texts of their models, as for `lab.score.blind`. A mechanism stays only while it buys something
here: fewer requests below the need, a smaller sum, or fewer requests far above the need.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple
from unittest.mock import patch

from lab.command import exit_code
from lab.score.blind import answers
from lab.scripts.run import LISTS
from lab.scripts.score import judge, load
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.structural import workspaces as structural
from slurm_gpumem.estimators.traced import estimator as traced
from slurm_gpumem.estimators.traced import replay
from slurm_gpumem.estimators.workspaces import convolutions, fourier

BLIND = ("blind", "fresh", "third-blind", "fourth-blind", "fifth-blind", "sixth")


@dataclass(frozen=True)
class Mechanism:
    """What is put in the place of a function to switch it off."""

    owner: Any
    function: str
    instead: Callable[..., Any]
    needs: str = ""
    """Words that a trace must contain for the mechanism to matter to it."""


@dataclass(frozen=True)
class Job:
    """One job's estimate beside its need, in MiB."""

    name: str
    need: int
    peak: int
    request: int


MECHANISMS: Dict[str, Mechanism] = {
    "Fourier predictor": Mechanism(fourier, "share", lambda *_: 0.0, '"uses_conv":true'),
    "room for batch lengths": Mechanism(traced, "room", lambda *_: 0),
    "products of 1-D layers": Mechanism(convolutions, "_sums_products", lambda *_: False, '"uses_conv":true'),
    "autotuning": Mechanism(replay, "_tries", lambda *_: (0, 0), '"benchmark":true'),
}
Groups = Dict[str, Tuple[str, ...]]


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m lab.ablations", description=__doc__)
    parser.add_argument("lists", nargs="*", metavar="LIST", help=f"of {', '.join(LISTS)}")
    parser.add_argument("--texts", type=Path, action="append", default=[], metavar="DIR")
    parser.add_argument("--only", action="append", default=[], choices=list(MECHANISMS))
    parser.add_argument("--scripts", action="store_true", help="name the jobs whose estimates change")
    return exit_code(lambda: _run(parser.parse_args(argv)))


def _run(args: argparse.Namespace) -> int:
    chosen = tuple(args.only or MECHANISMS)
    groups: Groups = {name: (name,) for name in chosen}
    if len(chosen) > 1:
        groups["all of these"] = chosen
    print("without                   jobs  median     P90  below    sum  > 1.5   > 2  changed")
    if not args.texts:
        _table(_script_jobs(args.lists or BLIND, groups), args.scripts)
    for folder in args.texts:
        _table(_text_jobs(folder, groups), args.scripts)
    return 0


@contextmanager
def without(names: Sequence[str]) -> Iterator[None]:
    """The estimate with these mechanisms switched off."""
    with ExitStack() as stack:
        for name in names:
            off = MECHANISMS[name]
            stack.enter_context(patch.object(off.owner, off.function, off.instead))
        _forget()
        yield
    _forget()


def _forget() -> None:
    """Answers that are kept were made with other mechanisms."""
    for module in (convolutions, structural):
        for kept in vars(module).values():
            if hasattr(kept, "cache_clear") and kept.__name__ != "_forests":
                kept.cache_clear()


def _script_jobs(lists: Sequence[str], groups: Groups) -> Dict[str, List[Job]]:
    """The jobs of lists of scripts: with every mechanism, and without those of each group."""
    if any(name not in LISTS for name in lists):
        raise UsageError(f"lists are {', '.join(LISTS)}")
    found: Dict[str, List[Job]] = {title: [] for title in ("nothing", *groups)}
    for row in (row for name in lists for row in load([name])):
        usual = _judged(row)
        found["nothing"] += usual
        for title, names in groups.items():
            matters = usual and any(MECHANISMS[name].needs in row["summary"] for name in names)
            with without(names):
                found[title] += _judged(row) if matters else usual
    return found


def _judged(row: Dict[str, Any]) -> List[Job]:
    return [Job(one.name, one.need, one.peak, one.request) for one in judge([row], "h200").judged]


def _text_jobs(folder: Path, groups: Groups) -> Dict[str, List[Job]]:
    """The same for texts of models, every kind of text that a run has."""
    found = {}
    for title, names in {"nothing": (), **groups}.items():
        with without(names):
            made = answers(folder, None)
        found[title] = [
            Job(f"{one.run.key}, {one.kind}", one.need_mib, one.made.peak_mib, one.made.request_mib)
            for one in made
            if one.made is not None
        ]
    return found


def _table(found: Dict[str, List[Job]], named: bool) -> None:
    usual = {job.name: job for job in found["nothing"]}
    for title, jobs in found.items():
        changed = [job for job in jobs if job != usual.get(job.name)]
        print(f"{title:<24}{_cells(jobs)}{len(changed):>9}", flush=True)
        for job in changed if named else ():
            was = usual[job.name]
            print(
                f"    {job.name:<40} need {job.need:>7}  peak {was.peak:>7} -> {job.peak:>7}"
                f"  request {was.request:>7} -> {job.request:>7}"
            )


def _cells(jobs: Sequence[Job]) -> str:
    if not jobs:
        raise UsageError("no job was both estimated and measured")
    sizes = sorted(abs(job.peak / job.need - 1) for job in jobs)
    wide = [job.request / job.need for job in jobs]
    total = sum(job.request for job in jobs) / sum(job.need for job in jobs)
    return (
        f"{len(jobs):>6}{100 * median(sizes):>6.2f} %{100 * sizes[int(0.9 * len(sizes))]:>6.1f} %"
        f"{sum(w < 1 for w in wide):>7}{total:>7.3f}"
        f"{sum(w > 1.5 for w in wide):>7}{sum(w > 2 for w in wide):>6}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
