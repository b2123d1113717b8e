"""GPUMemNet's twins: what they look at, and that they learn what can be learned from it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from slurm_gpumem.lab.gpumemnet.rows import LONGEST, layer_type, net_rows
from slurm_gpumem.lab.ground_truth import GroundTruth
from tests.support.needs import needs_torch

LEARNS = """
import torch
torch.set_num_threads(1)
from slurm_gpumem.lab.gpumemnet import nets
from slurm_gpumem.lab.gpumemnet.rows import LAYER_TYPES, NetRow

def row(number):
    size = float(number % 40)
    features = (size, 1.0, 2.0)
    token = tuple(float(n == 0) for n in range(len(LAYER_TYPES))) + (size, size)
    name = str(number)
    return NetRow(name, name, name, "mlp", True, 200 + 100 * (number % 40), features, (token,) * 3)

nets.STEPS = {"mlp": 100, "transformer": 12}
nets.RATE = 2e-2
rows = [row(number) for number in range(240)]
for kind in ("mlp", "transformer"):
    told = nets.classify(kind, rows[:200], rows[200:], 1024)
    right = sum(a == b.real_mib // 1024 for a, b in zip(told, rows[200:]))
    print(kind, right / 40)
    assert right >= (30 if kind == "mlp" else 12), (kind, right)
"""


@needs_torch
def test_both_ensembles_learn_a_simple_rule() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LEARNS],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("Conv2d", "conv"),
        ("Linear", "linear"),
        ("MultiheadAttention", "attention"),
        ("LayerNorm", "norm"),
        ("LeakyReLU", "activation"),
        ("MaxPool2d", "other"),
    ],
)
def test_layers_have_types(kind: str, found: str) -> None:
    assert layer_type(kind) == found


def test_every_run_has_a_family_features_and_a_bounded_sequence(ground_truth: GroundTruth) -> None:
    rows = net_rows(replace(ground_truth, runs=ground_truth.runs[::60]))
    assert {row.family for row in rows} == {"mlp", "cnn", "transformer"}
    for row in rows:
        assert len(row.features) == 11
        assert 0 < len(row.sequence) <= LONGEST
        if row.synthetic:
            assert row.family in row.model or row.model.split("/")[0] in ("mlp", "cnn", "transformer")
