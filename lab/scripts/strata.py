"""Two kinds of scripts, and how common each is: those whose step repeats, and those that change on the way.

    python -m lab.scripts.strata      the count of public scripts that were drawn at random

A list may say of each script which kind it is (`stratum`, by reading its code). `lab.scripts.score` then has
a line for each and a row in which each counts as often as it was found among public scripts
(lab/data/scripts/count.csv; how they were drawn: lab/docs/scripts.md).
"""

from __future__ import annotations

import csv
from collections import Counter
from typing import Callable, Dict, Iterable, Iterator, List, Sequence, Tuple, TypeVar

from lab.command import print_lines
from lab.places import SCRIPT_ROWS
from lab.rows import Row
from lab.scripts.lists import LISTS, load_list

STRATA = ("repeats", "changes")
_COUNT = SCRIPT_ROWS / "count.csv"
T = TypeVar("T")


def drawn() -> List[Row]:
    """All that were drawn, in their order: repository, path, class and kind of each.

    A class is one of STRATA; "other": no training by PyTorch; "absent": the stored copy has no such file. The
    kind says what changes on the way.
    """
    with open(_COUNT, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def shares() -> Dict[str, float]:
    """How common each stratum is among the training scripts that were drawn."""
    found = Counter(one["class"] for one in drawn() if one["class"] in STRATA)
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


def lines() -> Iterator[str]:
    """The count as text."""
    rows = drawn()
    counts = Counter(one["class"] for one in rows)
    training = [one for one in rows if one["class"] in STRATA]
    yield (
        f"{len(rows)} drawn: {len(training)} train with PyTorch, {counts['other']} do not, "
        f"{counts['absent']} are not in the stored copy"
    )
    for stratum in STRATA:
        yield f"{stratum:<10}{counts[stratum]:>4}{100 * counts[stratum] / len(training):>7.1f} %"
    for kind, count in Counter(one["kind"] for one in training if one["kind"]).most_common():
        yield f"  {kind:<28}{count:>4}{100 * count / len(training):>7.1f} %"


if __name__ == "__main__":
    raise SystemExit(print_lines(lines))
