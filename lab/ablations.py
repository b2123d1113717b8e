"""What each mechanism of the estimate buys on blind data: the same jobs with it and without it.

    python -m lab.ablations [LIST ...] [--texts DIR ...] [--only MECHANISM ...] [--jobs]

LIST: lists of scripts (default: the blind ones), as traced before any was measured. --texts: sets of measured
runs with the texts of their models (default: the newest). A mechanism stays only while it buys something
here: fewer requests below the need, a smaller error, or a smaller sum. Margins are as they were fitted with
all mechanisms.
"""

from __future__ import annotations

import argparse
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple
from unittest.mock import patch

from lab.command import exit_code
from lab.places import BLIND_CHECKS
from lab.score.blind import answers
from lab.score.figures import Answer, figures
from lab.scripts.lists import LISTS
from lab.scripts.score import judge, load
from slurm_gpumem import estimators
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.corrected import estimator as corrected
from slurm_gpumem.estimators.corrected.similar import SimilarModels
from slurm_gpumem.estimators.structural import modules
from slurm_gpumem.estimators.structural.estimator import rebuild
from slurm_gpumem.estimators.traced import replay
from slurm_gpumem.estimators.types import CustomForward
from slurm_gpumem.estimators.workspaces import convolutions

BLIND = ("blind", "fresh", "third-blind", "fourth-blind", "fifth-blind", "sixth")
_FORWARDS = ("registry", "attentions", "images", "language")
"""Modules of the rules of known classes."""


@dataclass(frozen=True)
class Mechanism:
    """What is put in the place of a function to switch it off."""

    owner: Any
    function: str
    instead: Callable[..., Any]
    files: Tuple[str, ...]
    """Below slurm_gpumem/estimators."""
    texts: bool = False
    """Whether it is one of estimates from texts, not from traces."""
    needs: str = ""
    """Words that a trace must contain for the mechanism to matter to it."""

    @property
    def lines(self) -> int:
        """Of its modules."""
        folder = Path(estimators.__file__).parent
        return sum(len((folder / name).read_text().splitlines()) for name in self.files)


@dataclass(frozen=True)
class Job(Answer):
    """One job's estimate beside its need."""

    name: str = ""


MECHANISMS: Dict[str, Mechanism] = {
    "similar models": Mechanism(SimilarModels, "near", lambda *_: (), ("corrected/similar.py",), texts=True),
    "custom forwards": Mechanism(
        corrected,
        "custom_forward",
        lambda *_: CustomForward(0.0, ()),
        ("corrected/custom_forward.py",),
        texts=True,
    ),
    "known classes": Mechanism(
        modules,
        "forward_of",
        lambda *_: None,
        tuple(f"structural/forwards/{name}.py" for name in _FORWARDS),
        texts=True,
    ),
    "autotuning": Mechanism(
        replay,
        "_autotuning",
        lambda *_: (0, 0),
        ("traced/replay.py", "workspaces/benchmark.py"),
        needs='"benchmark":true',
    ),
    "Fourier predictor": Mechanism(
        convolutions, "picked", lambda *_: False, ("workspaces/convolutions.py",), needs='"uses_conv":true'
    ),
    "convolutions": Mechanism(
        convolutions,
        "_bytes",
        lambda *_: 0,
        ("workspaces/convolutions.py",),
        needs='"uses_conv":true',
    ),
}


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m lab.ablations", description=__doc__)
    parser.add_argument("lists", nargs="*", metavar="LIST", help=f"of {', '.join(LISTS)}")
    parser.add_argument("--texts", type=Path, action="append", default=[], metavar="DIR")
    parser.add_argument("--only", action="append", default=[], choices=list(MECHANISMS))
    parser.add_argument("--jobs", action="store_true", help="name the jobs whose estimates change")
    return exit_code(lambda: _run(parser.parse_args(argv)))


def _run(args: argparse.Namespace) -> int:
    chosen = args.only or list(MECHANISMS)
    print(
        "with -> without    lines  jobs  changed   below need    median error         P90 error          sum"
    )
    for texts in (True, False):
        names = [name for name in chosen if MECHANISMS[name].texts == texts]
        if names:
            folders = args.texts or BLIND_CHECKS[-1:]
            found = _text_jobs(folders, names) if texts else _script_jobs(args.lists or BLIND, names)
            _table(found, args.jobs)
    return 0


@contextmanager
def without(name: str) -> Iterator[None]:
    """The estimate with this mechanism switched off."""
    off = MECHANISMS[name]
    with patch.object(off.owner, off.function, off.instead):
        _forget()
        yield
    _forget()


def _forget() -> None:
    """Answers that are kept were made with other mechanisms."""
    for kept in (convolutions._bytes, convolutions._usual, corrected._structural, rebuild):
        if hasattr(kept, "cache_clear"):
            kept.cache_clear()


def _script_jobs(lists: Sequence[str], names: Sequence[str]) -> Dict[str, List[Job]]:
    """The jobs of lists of scripts: with every mechanism (""), and without each of these."""
    if any(name not in LISTS for name in lists):
        raise UsageError(f"lists are {', '.join(LISTS)}")
    found: Dict[str, List[Job]] = {title: [] for title in ("", *names)}
    for row in (row for name in lists for row in load([name])):
        usual = _judged(row)
        found[""] += usual
        for name in names:
            if not usual or MECHANISMS[name].needs not in row["trace"]:
                found[name] += usual
                continue
            with without(name):
                found[name] += _judged(row)
    return found


def _judged(row: Dict[str, Any]) -> List[Job]:
    return [
        Job(one.real_mib, one.peak_mib, one.request_mib, name=one.name) for one in judge([row], "h200").judged
    ]


def _text_jobs(folders: Sequence[Path], names: Sequence[str]) -> Dict[str, List[Job]]:
    """The same for texts of models, every kind of text that a run has."""
    found = {"": _answered(folders)}
    for name in names:
        with without(name):
            found[name] = _answered(folders)
    return found


def _answered(folders: Sequence[Path]) -> List[Job]:
    return [
        Job(one.need_mib, one.made.peak_mib, one.made.request_mib, name=f"{one.run.key}, {one.kind}")
        for folder in folders
        for one in answers(folder, None)
        if one.made is not None
    ]


def _table(found: Dict[str, List[Job]], named: bool) -> None:
    usual = {job.name: job for job in found.pop("")}
    if not usual:
        raise UsageError("no job was both estimated and measured")
    before = _figures(list(usual.values()))
    for name, jobs in found.items():
        changed = [job for job in jobs if job != usual[job.name]]
        after = _figures(jobs)
        below, middle, far, total = (f"{was} -> {now}" for was, now in zip(before, after))
        print(
            f"{name:<18}{MECHANISMS[name].lines:>6}{len(jobs):>6}{len(changed):>9}{below:>13}{middle:>16}"
            f"{far:>18}{total:>13}",
            flush=True,
        )
        for job in changed if named else ():
            was = usual[job.name]
            print(
                f"    {job.name:<40} need {job.real_mib:>7}  peak {was.peak_mib:>7} -> {job.peak_mib:>7}"
                f"  request {was.request_mib:>7} -> {job.request_mib:>7}"
            )


def _figures(jobs: Sequence[Job]) -> Tuple[str, str, str, str]:
    """Below need, median and P90 of the peak's error, sum of requests over sum of needs."""
    one = figures(jobs)
    below = str(round(one.under_request * one.count))
    return below, f"{one.median_error:.1%}", f"{one.p90_error:.1%}", f"{one.capacity:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
