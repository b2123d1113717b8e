"""The data sets that GPUMemNet is trained on: features and labels of drawn configurations, kept in a folder.

A file a family, one line a configuration; what is there already is not computed again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from lab.gpumemnet.configurations import configuration, summary_of
from lab.gpumemnet.labels import class_of, label
from slurm_gpumem.estimators.published.features import Features, features


@dataclass(frozen=True)
class Example:
    """What a network sees and what it is to answer."""

    features: Features
    label: int


def examples(family: str, count: int, folder: Path) -> List[Example]:
    """The first configurations of a family with their classes; labels are kept in `folder`."""
    labels = _labels(family, count, folder / f"{family}.jsonl")
    found = []
    for number in range(count):
        drawn = configuration(family, number)
        seen = features(summary_of(drawn), drawn.batch)
        found.append(Example(seen, class_of(family, labels[number])))
    return found


def _labels(family: str, count: int, path: Path) -> Dict[int, int]:
    found: Dict[int, int] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            number, mib = json.loads(line)
            found[number] = mib
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for number in range(count):
            if number not in found:
                found[number] = label(configuration(family, number))
                file.write(json.dumps([number, found[number]]) + "\n")
                file.flush()
    return found


def split(found: Sequence[Example]) -> Tuple[List[Example], List[Example], List[Example]]:
    """70 % to train on, 20 % to stop by, 10 % to judge by; the configurations are in random order already."""
    train, stop = len(found) * 7 // 10, len(found) * 9 // 10
    return list(found[:train]), list(found[train:stop]), list(found[stop:])
