"""GPUUtilNet after its description (arXiv 2602.17817), on our measured jobs: `make gpuutilnet`.

Per data set (MLP, CNN, Transformer) and metric (SMACT, SMOCC, DRAMA) an ensemble of 13 multilayer perceptrons
of different depths and widths classifies a job into the three published bins from counts of its summary.
Judged twice: as published (stratified 3 folds over all rows) and as ours is (5 folds, a model with its
namesakes in one). Writes the held-out answers to lab/data/utilization/gpuutilnet.json.gz; `gpumem accuracy`
shows them.
"""

from __future__ import annotations

import argparse
import gzip
import json
from math import cos, log1p, pi, sin
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold

from lab.fit.folds import fold_of
from lab.fit.utilization import data_sha256
from lab.ground_truth import TOOLS
from lab.places import GPUUTILNET, GROUND_TRUTH, shown, under
from lab.score.gpuutilnet_table import DATASETS, METRICS, class_of, dataset_of
from lab.utilization_runs import Solo, load_solo, load_texts
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.estimators.structural.kinds import family_of
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary

Array = Any
ENSEMBLE: Tuple[Tuple[int, int], ...] = (
    *((depth, 64) for depth in range(1, 8)),
    *((depth, 128) for depth in range(1, 7)),
)
"""Depth and width of the 13 networks: depths of 1 to 7 and of 1 to 6, as described; widths are ours."""
EPOCHS = 150
PATIENCE = 15
"""Epochs without a better loss on the rows kept aside after which training ends."""
VALIDATION = 0.15
SEEDS = (0, 1, 2)
SEED = 0
"""Of the folds."""
_ACTIVATIONS = (
    "ReLU",
    "GELU",
    "SiLU",
    "Tanh",
    "Sigmoid",
    "ELU",
    "LeakyReLU",
    "SELU",
    "Softplus",
    "Hardswish",
)


def features_of(summary: ModelSummary, run: Solo) -> List[float]:
    """The published features of a job, sizes as logarithms."""
    leaves = summary.leaves
    counts = {"linear": 0, "conv": 0, "batch_norm": 0, "layer_norm": 0, "dropout": 0}
    for row in leaves:
        family = family_of(row.kind)
        if family in counts:
            counts[family] += 1
    activations = sum(summary.elements(row.outputs[0], 1) for row in leaves if row.outputs)
    kinds = [row.kind for row in leaves if row.kind in _ACTIVATIONS]
    place = _ACTIVATIONS.index(max(set(kinds), key=kinds.count)) if kinds else 0
    angle = 2 * pi * place / len(_ACTIVATIONS)
    batch = run.job.batch_size
    return [
        *(float(count) for count in counts.values()),
        float(len(leaves)),
        log1p(batch),
        log1p(summary.total_params),
        log1p(activations),
        log1p(activations * batch),
        cos(angle),
        sin(angle),
    ]


def train_and_answer(values: Array, classes: Array, asked: Array) -> Array:
    """The ensemble trained on rows and classes, answering for `asked`; votes of all seeds together."""
    mean, spread = values.mean(0), values.std(0) + 1e-6
    x = torch.tensor((values - mean) / spread, dtype=torch.float32)
    y = torch.tensor(classes)
    q = torch.tensor((asked - mean) / spread, dtype=torch.float32)
    votes = torch.zeros(len(asked), 3)
    for seed in SEEDS:
        torch.manual_seed(seed)
        order = np.random.default_rng(seed).permutation(len(classes))
        kept = max(1, round(VALIDATION * len(classes)))
        split = (order[kept:], order[:kept])
        for depth, width in ENSEMBLE:
            net = _trained(_network(x.shape[1], depth, width), x, y, split)
            with torch.no_grad():
                votes += torch.softmax(net(q), dim=1)
    return votes.argmax(1).numpy()


def _network(size: int, depth: int, width: int) -> torch.nn.Module:
    layers: List[torch.nn.Module] = []
    for _ in range(depth):
        layers += [torch.nn.Linear(size, width), torch.nn.ReLU()]
        size = width
    return torch.nn.Sequential(*layers, torch.nn.Linear(size, 3))


def _trained(net: torch.nn.Module, x: Any, y: Any, split: Tuple[Array, Array]) -> torch.nn.Module:
    """Trained until the rows kept aside get no better; then as it was at their best."""
    learn, judge = split
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=1e-4)
    loss_of = torch.nn.functional.cross_entropy
    best, since = float("inf"), 0
    state = net.state_dict()
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss_of(net(x[learn]), y[learn]).backward()
        optimizer.step()
        with torch.no_grad():
            seen = float(loss_of(net(x[judge]), y[judge]))
        since += 1
        if seen < best:
            best, since = seen, 0
            state = {name: value.clone() for name, value in net.state_dict().items()}
        if since > PATIENCE:
            break
    net.load_state_dict(state)
    return net


def held_out(values: Array, classes: Array, folds: Sequence[Tuple[Array, Array]]) -> List[int]:
    """Every row's class by the ensemble that did not see its fold."""
    answers = np.zeros(len(classes), dtype=int)
    for learn, judge in folds:
        if len(judge):
            answers[judge] = train_and_answer(values[learn], classes[learn], values[judge])
    return [int(answer) for answer in answers]


def _stratified(classes: Array) -> List[Tuple[Array, Array]]:
    return list(StratifiedKFold(3, shuffle=True, random_state=SEED).split(classes, classes))


def _by_model(runs: Sequence[Solo]) -> List[Tuple[Array, Array]]:
    fold = np.array([fold_of(run.model) for run in runs])
    return [(np.flatnonzero(fold != n), np.flatnonzero(fold == n)) for n in np.unique(fold)]


def table(
    runs: Sequence[Solo], texts: Mapping[str, Mapping[str, str]]
) -> Dict[str, Tuple[List[Solo], Array]]:
    """By data set: its jobs and their features; jobs without a readable text are left out."""
    found: Dict[str, Tuple[List[Solo], List[List[float]]]] = {name: ([], []) for name in DATASETS}
    for run in runs:
        for tool in (tool for tool in TOOLS if tool in texts.get(run.summary, {})):
            try:
                summary = read_summary(texts[run.summary][tool].rstrip("\n") + "\n")
            except GpumemError:
                continue
            members, values = found[dataset_of(run.family)]
            members.append(run)
            values.append(features_of(summary, run))
            break
    return {name: (members, np.array(values)) for name, (members, values) in found.items() if members}


def main(argv: Optional[List[str]] = None) -> int:
    """Train all ensembles and write their held-out answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help=f"folder of measured jobs ({shown(GROUND_TRUTH)})")
    parser.add_argument("--out", type=Path, help="write below this folder instead of the repository")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    folder = args.data or GROUND_TRUTH
    runs = load_solo([folder])
    tables = table(runs, load_texts({run.summary: None for run in runs}))
    answers: Dict[str, Dict[str, List[int]]] = {}
    for dataset, (members, values) in tables.items():
        for metric in METRICS:
            classes = np.array([class_of(dataset, metric, 100 * run.values[metric]) for run in members])
            theirs = held_out(values, classes, _stratified(classes))
            ours = held_out(values, classes, _by_model(members))
            for run, one, other in zip(members, theirs, ours):
                answers.setdefault(run.key, {})[metric] = [one, other]
            print(
                f"{dataset} {METRICS[metric]}: {len(members)} jobs, "
                f"{np.mean(np.array(theirs) == classes):.2f} right in stratified folds, "
                f"{np.mean(np.array(ours) == classes):.2f} on models kept out",
                flush=True,
            )
    content = {"data_sha256": data_sha256([folder]), "answers": answers}
    under(args.out, GPUUTILNET).write_bytes(
        gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0)
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
