"""Two kinds of scripts, and how common each is: those whose step repeats, and those that change on the way.

    python -m lab.scripts.strata      the count of public scripts that were drawn at random

A list may say of each script which kind it is (`stratum`, by reading its code). `lab.scripts.score` then has
a line for each and a row in which each counts as often as it was found among public scripts
(lab/data/scripts/count.csv; how they were drawn: lab/docs/scripts.md).
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, List, Sequence, Tuple, TypeVar

from lab.places import SCRIPT_ROWS
from lab.scripts.lists import LISTS, load_list

STRATA = ("repeats", "changes")
_COUNT = SCRIPT_ROWS / "count.csv"
T = TypeVar("T")


@dataclass(frozen=True)
class Drawn:
    """One public script that was drawn."""

    repository: str
    path: str
    stratum: str
    """Of STRATA; "other": no training by PyTorch; "absent": the stored copy has no such file."""
    kind: str
    """What changes on the way."""


def drawn() -> List[Drawn]:
    """All that were drawn, in their order."""
    with open(_COUNT, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [Drawn(row["repository"], row["path"], row["class"], row["kind"]) for row in rows]


def shares() -> Dict[str, float]:
    """How common each stratum is among the training scripts that were drawn."""
    found = Counter(one.stratum for one in drawn() if one.stratum in STRATA)
    return {stratum: found[stratum] / sum(found.values()) for stratum in STRATA}


def strata_of_scripts() -> Dict[str, str]:
    """The stratum of every script whose list names one; names are unique over all lists."""
    listed = (script for path in LISTS.values() for script in load_list(path))
    return {script.name: script.stratum for script in listed if script.stratum}


def weighted_share(values: Iterable[Tuple[float, bool]]) -> float:
    """The share of the weights for which something holds."""
    pairs = list(values)
    return sum(weight for weight, holds in pairs if holds) / sum(weight for weight, _ in pairs)


def quantile(values: Iterable[Tuple[float, float]], part: float) -> float:
    """Of values with weights: the first below which there is more than this part of the weights."""
    pairs = sorted((value, weight) for weight, value in values)
    most = part * sum(weight for _, weight in pairs)
    reached = 0.0
    for value, weight in pairs:
        reached += weight
        if reached > most:
            return value
    return pairs[-1][0]


def weights(items: Sequence[T], stratum: Callable[[T], str]) -> List[Tuple[float, T]]:
    """Each item with a weight by which its stratum counts as often as it was found."""
    sizes = Counter(stratum(one) for one in items)
    common = shares()
    return [(common[stratum(one)] / sizes[stratum(one)], one) for one in items]


def main() -> int:
    """Print the count."""
    rows = drawn()
    counts = Counter(one.stratum for one in rows)
    training = [one for one in rows if one.stratum in STRATA]
    print(
        f"{len(rows)} drawn: {len(training)} train with PyTorch, {counts['other']} do not, "
        f"{counts['absent']} are not in the stored copy"
    )
    for stratum in STRATA:
        print(f"{stratum:<10}{counts[stratum]:>4}{100 * counts[stratum] / len(training):>7.1f} %")
    for kind, count in Counter(one.kind for one in training if one.kind).most_common():
        print(f"  {kind:<28}{count:>4}{100 * count / len(training):>7.1f} %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
