"""Train GPUMemNet's estimators on data of the published size and write the networks that `gpumem` runs.

    make gpumemnet
    python -m lab.gpumemnet.train [--family F] [--kind K] [--share 1.0] [--check N] ...

Labels are computed (labels.py) and kept in --work, so that a run that was stopped goes on where it was;
--measured-mlps compares them with the authors' measurements, --check with traces. Prints accuracy and F1 on
the tenth that was neither trained on nor used to stop, as the exported networks answer it.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from lab.gpumemnet.configurations import SEED, SIZES
from lab.gpumemnet.data import Example, examples, split
from lab.gpumemnet.ensembles import Encoders, Perceptrons, depths_for
from lab.gpumemnet.labels import EDGES, Agreement, check, check_measured
from lab.places import FITTED, shown
from slurm_gpumem.estimators.published.features import CNN, FAMILIES, MLP, TRANSFORMER
from slurm_gpumem.estimators.published.gpumemnet import (
    ENCODERS,
    FORMAT,
    PERCEPTRONS,
    encoders_class,
    perceptrons_class,
)

KINDS = ("mlp", "transformer")
FILES = {"mlp": PERCEPTRONS, "transformer": ENCODERS}
RATE, BATCH, PATIENCE, EPOCHS = 1e-3, 128, 30, 600
"""As in the authors' code: Adam, stopped after 30 epochs without a lower loss on the second part."""
PUBLISHED = {
    (MLP, "mlp"): (0.95, 0.93),
    (MLP, "transformer"): (0.97, 0.96),
    (CNN, "mlp"): (0.83, 0.83),
    (CNN, "transformer"): (0.81, 0.81),
    (TRANSFORMER, "mlp"): (0.88, 0.88),
    (TRANSFORMER, "transformer"): (0.86, 0.86),
}
"""Accuracy and F1 of the paper's table, by data set and estimator."""
Inputs = Tuple[Tensor, ...]


@dataclass(frozen=True)
class Figure:
    """One line of the published table, on our data."""

    family: str
    kind: str
    examples: int
    epochs: int
    in_time: bool
    """Whether it stopped by itself."""
    accuracy: float
    f1: float
    majority: float
    """Accuracy of always saying the most frequent class."""


def main(argv: Sequence[str] = ()) -> int:
    """Entry point of the command."""
    args = _parser().parse_args(list(argv))
    torch.set_num_threads(1)
    for line in _agreements(args.check, args.measured_mlps):
        print(line, flush=True)
    figures = []
    for kind in args.kind or KINDS:
        path = args.out / FILES[kind]
        content = _stored(path)
        for family in args.family or FAMILIES:
            found = examples(family, int(SIZES[family] * args.share), args.work)
            network, figure = trained(kind, family, found, args.minutes * 60)
            content["families"][family] = network
            content["card"][family] = asdict(figure)
            figures.append(figure)
            path.write_bytes(_packed(content))
    print("\n".join(table(figures)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.gpumemnet.train", description=__doc__)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only this data set")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this estimator")
    parser.add_argument("--share", type=float, default=1.0, help="part of the published number (default: 1)")
    parser.add_argument("--minutes", type=float, default=60.0, help="for one network at most (default: 60)")
    parser.add_argument("--work", type=Path, default=Path("build/gpumemnet"), help="where labels are kept")
    parser.add_argument("--out", type=Path, default=FITTED, help=f"default: {shown(FITTED)}")
    parser.add_argument("--check", type=int, default=0, metavar="N", help="trace N of each family as well")
    parser.add_argument("--measured-mlps", type=Path, metavar="CSV", help="the authors' mlp_data_step2.csv")
    return parser


def trained(
    kind: str, family: str, found: Sequence[Example], seconds: float
) -> Tuple[Dict[str, Any], Figure]:
    """One network as plain numbers, and how it does on examples that it has not seen."""
    started = time.monotonic()
    train, stop, test = split(found)
    torch.manual_seed(SEED)
    net = _network(kind, family, train[0], max(len(e.features.sequence) for e in train))
    epochs, in_time = _fit(net, _tensors(net, train), _tensors(net, stop), seconds)
    network = _exported(net, family)
    answer = perceptrons_class if kind == "mlp" else encoders_class
    told = [answer(network, example.features) for example in test]
    real = [example.label for example in test]
    right = sum(a == b for a, b in zip(told, real)) / len(real)
    most = max(real.count(value) for value in set(real)) / len(real)
    f1 = round(f1_score(told, real), 4)
    figure = Figure(family, kind, len(found), epochs, in_time, round(right, 4), f1, round(most, 4))
    print(f"{figure}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return network, figure


def f1_score(told: Sequence[int], real: Sequence[int]) -> float:
    """F1 of each class, weighted by how often it is the right one, as the publication scores it."""
    total = 0.0
    for value in set(real):
        right = sum(a == b == value for a, b in zip(told, real))
        said, wanted = list(told).count(value), list(real).count(value)
        total += wanted * (2 * right / (said + wanted))
    return total / len(real)


def _network(kind: str, family: str, example: Example, length: int) -> nn.Module:
    classes, seen = len(EDGES[family]), example.features
    if kind == "mlp":
        return Perceptrons(len(seen.totals), classes, depths_for(family))
    return Encoders(len(seen.sequence[0]), length, len(seen.beside), classes)


def _exported(net: nn.Module, family: str) -> Dict[str, Any]:
    if isinstance(net, Perceptrons):
        return {"edges": EDGES[family], "members": _rounded(net.exported(), 3)}
    assert isinstance(net, Encoders)
    encoders = [encoder.exported() for encoder in net.encoders]  # type: ignore[operator]
    return {"edges": EDGES[family], "encoders": _rounded(encoders, 2)}


def _rounded(value: Any, digits: int) -> Any:
    """Every number with this many digits: more changed none of the answers that were compared."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {name: _rounded(inner, digits) for name, inner in value.items()}
    return [_rounded(inner, digits) for inner in value] if isinstance(value, (list, tuple)) else value


def _packed(content: Dict[str, Any]) -> bytes:
    text = json.dumps(content, separators=(",", ":"))
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def _tensors(net: nn.Module, found: Sequence[Example]) -> Tuple[Inputs, Tensor]:
    labels = torch.tensor([example.label for example in found])
    if isinstance(net, Perceptrons):
        return (_floats([example.features.totals for example in found]),), labels
    assert isinstance(net, Encoders)
    sequences = torch.zeros(len(found), net.length, len(found[0].features.sequence[0]))
    for number, example in enumerate(found):
        kept = example.features.sequence[: net.length]
        sequences[number, : len(kept)] = torch.tensor(kept)
    return (sequences, _floats([example.features.beside for example in found])), labels


def _floats(rows: Sequence[Sequence[float]]) -> Tensor:
    # Counts alone would make a tensor of whole numbers.
    return torch.tensor(rows, dtype=torch.float32)


def _fit(
    net: nn.Module, train: Tuple[Inputs, Tensor], stop: Tuple[Inputs, Tensor], seconds: float
) -> Tuple[int, bool]:
    """Train until the loss on the second part stays; the best state is kept. Returns the epochs."""
    end = time.monotonic() + seconds
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    best, best_epoch, state = float("inf"), 0, net.state_dict()
    inputs, labels = train
    for epoch in range(1, EPOCHS + 1):
        net.train()
        for chosen in torch.randperm(len(labels)).split(BATCH):
            if len(chosen) == 1:
                continue  # A batch norm needs two.
            optimizer.zero_grad()
            logits = net(*(tensor[chosen] for tensor in inputs))
            nn.functional.cross_entropy(logits, labels[chosen]).backward()
            optimizer.step()
        loss = _loss(net, *stop)
        if loss < best:
            best, best_epoch = loss, epoch
            state = {name: value.clone() for name, value in net.state_dict().items()}
        if epoch - best_epoch >= PATIENCE or time.monotonic() > end:
            break
    net.load_state_dict(state)
    net.eval()
    return epoch, epoch - best_epoch >= PATIENCE or epoch == EPOCHS


def _loss(net: nn.Module, inputs: Inputs, labels: Tensor) -> float:
    net.eval()
    total = 0.0
    with torch.no_grad():
        for chosen in torch.arange(len(labels)).split(BATCH):
            logits = net(*(tensor[chosen] for tensor in inputs))
            total += float(nn.functional.cross_entropy(logits, labels[chosen], reduction="sum"))
    return total / len(labels)


def table(figures: Sequence[Figure]) -> List[str]:
    """The published table with ours beside it."""
    lines = ["data set     estimator    configurations  accuracy     F1  most frequent class  published"]
    for f in figures:
        accuracy, f1 = PUBLISHED[f.family, f.kind]
        lines.append(
            f"{f.family:<12} {f.kind:<12} {f.examples:>14,}  {f.accuracy:>8.3f}  {f.f1:.3f}  "
            f"{f.majority:>19.3f}  {accuracy:.2f} / {f1:.2f}"
        )
    return lines


def _agreements(count: int, measured: Optional[Path]) -> List[str]:
    found: List[Agreement] = [check_measured(measured)] if measured else []
    found += [check(family, count) for family in FAMILIES if count]
    return [
        f"{a.what}: {a.count} configurations, the same class {a.same_class:.1%}, "
        f"error median {a.median_error:.1%}, P90 {a.p90_error:.1%}"
        for a in found
    ]


def _stored(path: Path) -> Dict[str, Any]:
    """What a file has of other families stays; a run that was stopped goes on."""
    if path.exists():
        with lzma.open(path) as file:
            content: Dict[str, Any] = json.loads(file.read())
        return content
    return {"format": FORMAT, "card": {}, "families": {}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
