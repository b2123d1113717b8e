"""How much memory a drawn configuration takes on the authors' GPU.

Nobody measured our configurations, so each label is an estimate of ours: the training step rebuilt from the
layers and replayed through the allocator (the structural estimator), which takes milliseconds, or the traced
step (seconds). `check` compares the two, and the first with measurements of the authors where their file is
at hand.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Tuple

from lab.gpumemnet.configurations import Configuration, configuration, mlp_arguments, summary_of
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.environment import Environment, in_environment
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.published.features import CNN, MLP, TRANSFORMER
from slurm_gpumem.estimators.structural.estimator import estimate as structural
from slurm_gpumem.estimators.traced.estimator import estimate as traced
from slurm_gpumem.estimators.types import Gpu, TrainingJob

EDGES: Dict[str, Tuple[int, ...]] = {
    MLP: (2000, 3000, 4000, 5000, 6000),
    CNN: (8000, 16000, 24000, 32000, 40000, 48000),
    TRANSFORMER: (8000, 16000, 24000, 32000, 40000, 48000),
}
"""Upper edges of the classes in MiB, as in the authors' code; the last class has no end.

Runs that did not fit the GPU of 40 GB are in the last class there, and so here.
"""
_FULL = "Max GPU Memory (MiB)"


@dataclass(frozen=True)
class Agreement:
    """How two ways to label compare."""

    what: str
    count: int
    same_class: float
    median_error: float
    p90_error: float


def authors_gpu() -> Gpu:
    """An A100 in an environment of 2024 with eagerly loaded modules, as their smallest runs show it."""
    return in_environment(find_gpu("a100"), Environment(loading="eager"))


def label(drawn: Configuration) -> int:
    """MiB by the replayed layers."""
    return structural(summary_of(drawn), TrainingJob(drawn.batch), authors_gpu()).peak_mib


def class_of(family: str, mib: int) -> int:
    """The class of a label; authors' MLPs have (1000, 2000], the others [0, 8000)."""
    edges = EDGES[family]
    shift = 1 if family == MLP else 0
    return next((number for number, edge in enumerate(edges) if mib - shift < edge), len(edges) - 1)


def check(family: str, count: int) -> Agreement:
    """The labels of the last configurations of a family against their traces. Needs torch."""
    from lab.gpumemnet.modules import traced_summary

    gpu = authors_gpu()
    pairs = []
    for number in range(count):
        drawn = configuration(family, number)
        peak = traced(traced_summary(drawn), TrainingJob(drawn.batch), gpu).peak_mib
        pairs.append((label(drawn), peak))
    return _agreement(f"{family}: replayed layers against traces", family, pairs)


def check_measured(path: Path) -> Agreement:
    """The labels of the authors' own MLPs against what they measured, from their mlp_data_step2.csv."""
    pairs = [(label(drawn), measured) for drawn, measured in authors_mlps(path)]
    return _agreement("mlp: replayed layers against the authors' measurements", MLP, pairs)


def authors_mlps(path: Path) -> Iterator[Tuple[Configuration, int]]:
    """Their configurations, and the MiB that they measured."""
    with path.open(newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            found = re.match(
                r"input:(\d+)_output:(\d+)_depth:(\d+)_arch:(\w+)_batch:(\d+)_act:(\w+)_"
                r"dropout:([\d.]+)_dropout:(\w+)_batchnorm:(\w+)\.out",
                row.get("Filename", ""),
            )
            if not found or not row.get(_FULL):
                raise UsageError(f"{path}, row {number + 2}: not a row of the authors' MLP data set")
            inputs, outputs, depth, shape, batch, _, rate, dropout, norm = found.groups()
            arguments = mlp_arguments(
                shape, int(inputs), int(outputs), int(depth), row["Activation Function"]
            )
            arguments["dropout"] = float(rate) if dropout == "True" else 0.0
            arguments["norm"] = norm == "True"
            yield Configuration(MLP, number, int(batch), arguments), int(row[_FULL])


def _agreement(what: str, family: str, pairs: Iterable[Tuple[int, int]]) -> Agreement:
    both = list(pairs)
    same = sum(class_of(family, ours) == class_of(family, other) for ours, other in both)
    errors: List[float] = sorted(abs(ours - other) / other for ours, other in both)
    return Agreement(
        what,
        len(both),
        same / len(both),
        errors[len(both) // 2],
        errors[min(len(both) * 9 // 10, len(both) - 1)],
    )
