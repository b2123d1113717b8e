"""Speeds of two users' jobs that no fit has seen, against what was written down before they were seen.

    python -m lab.score.pairs [--each]

The sets are those of plans/sets_pairs.toml (lab/data/utilization/check-pairs.jsonl.gz; its name keeps them
out of the fit). frozen-pairs.json beside them was committed before: the hash of the coefficients that the
package predicted with then (frozen-interference.json), and the constants of another form. In that form what a
job does to its neighbours depends on the length of its kernels (SM activity × step / kernels a step), not on
that of its steps: a server for all lets kernels of its clients take turns, and long ones get more time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from math import exp, log
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from lab.command import exit_code
from lab.places import MODELS, SETS
from lab.score.sets import JudgedSet, figure_lines
from lab.shared_speeds import SetJob, load_from
from lab.utilization_runs import SharedSet, load_sets, way_of
from slurm_gpumem.errors import UsageError
from slurm_gpumem.utilization.interference import FILE, FORMAT, Interference, from_json, prepare, rounded
from slurm_gpumem.utilization.sets import EQUAL, SIDE, speeds

PREFIX = "check-pairs"
FROZEN = SETS / "frozen-pairs.json"
COEFFICIENTS = SETS / "frozen-interference.json"
_USUAL_LENGTH = 30e-6
_LENGTHS = (3e-6, 3e-4)
"""Seconds of the whole GPU that a kernel takes: of a usual one, and the shortest and longest that count."""


def judged(
    sets: Sequence[SharedSet], frozen: Mapping[str, Any], model: Interference
) -> Dict[str, List[JudgedSet]]:
    """By title: every set with what was predicted for it."""
    found: Dict[str, List[JudgedSet]] = {}
    for one in sets:
        users = [str(user) for user in one.users] or ["0"] * len(one.jobs)
        several = "two users" if len(set(users)) > 1 else "one user"
        jobs = [
            SetJob(user, prepare(load_from(solo), model.modes[SIDE])) for user, solo in zip(users, one.solo)
        ]
        said = speeds(way_of(one), jobs, model.turns)
        found.setdefault(f"{one.mode}, {several}", []).append(JudgedSet(one, said))
        if way_of(one) == EQUAL:
            by_length = JudgedSet(one, speeds_by_length(one, frozen))
            found.setdefault(f"{one.mode}, {several}, by the length of kernels", []).append(by_length)
    return found


def speeds_by_length(one: SharedSet, frozen: Mapping[str, Any]) -> List[float]:
    """The other form, for clients of one server."""
    known: Mapping[str, float] = frozen["waiting"]
    lengths, presses = [], []
    for job, solo in zip(one.jobs, one.solo):
        seconds = solo["sm_active"] * solo["step_seconds"] / frozen["kernels"][job.rsplit("/", 3)[0]]
        length = log(max(_LENGTHS[0], min(_LENGTHS[1], seconds)) / _USUAL_LENGTH)
        warps = min(solo["sm_occupancy"] / max(solo["sm_active"], 0.02), 1.0) - 0.3
        exponent = known["pressure"] + known["press_length"] * length + known["press_occupancy"] * warps
        lengths.append(length)
        presses.append(solo["sm_active"] * exp(exponent))
    made = []
    for solo, length, press in zip(one.solo, lengths, presses):
        own, others, roundness = (
            exp(known["own"]) * solo["sm_active"],
            sum(presses) - press,
            exp(known["roundness"]),
        )
        beside = rounded(own + others, roundness) / rounded(own, roundness)
        made.append(1 / (beside + others * exp(known["sensitivity"] - known["suffer_length"] * length)))
    return made


def load_frozen(
    path: Path = FROZEN, coefficients: Path = COEFFICIENTS
) -> Tuple[Dict[str, Any], Interference]:
    """What was written down before; UsageError where the coefficients are not those."""
    frozen: Dict[str, Any] = json.loads(path.read_text())
    if hashlib.sha256(coefficients.read_bytes()).hexdigest() != frozen["interference"]:
        raise UsageError(f"{coefficients.name} has other coefficients than {path.name} was written for")
    # Priorities came later, and no pair had them.
    content = {**json.loads(coefficients.read_text()), "format": FORMAT}
    later = json.loads((MODELS / FILE).read_text())["priority"]
    return frozen, from_json({**content, "priority": later}, coefficients.name)


def lines(each: bool = False) -> List[str]:
    """The figures, and every set where asked."""
    sets = load_sets(prefix=PREFIX)
    if not sets:
        raise UsageError(f"no measured sets: {SETS.name}/{PREFIX}.jsonl.gz")
    found = judged(sets, *load_frozen())
    told = figure_lines(found)
    for title, items in found.items() if each else ():
        for item in items:
            jobs = [
                f"{job.split('/')[1].partition('@')[0]} {real:.2f} ({said:.2f})"
                for job, real, said in zip(item.measured.jobs, item.measured.speeds, item.predicted)
            ]
            told.append(f"{title}: {', '.join(jobs)}")
    return told


def main(argv: Optional[List[str]] = None) -> int:
    """Print them: speed measured, and predicted in brackets."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--each", action="store_true", help="every set, too")
    return exit_code(lambda: _print(parser.parse_args(argv).each))


def _print(each: bool) -> int:
    print("\n".join(lines(each)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
