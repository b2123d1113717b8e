"""GPUMemNet trained here: its data, its labels, its networks."""

from __future__ import annotations

import subprocess
import sys
from math import cos, pi, sin

import pytest

from lab.gpumemnet.configurations import (
    SIZES,
    Configuration,
    configuration,
    mlp_arguments,
    summary_of,
)
from lab.gpumemnet.labels import EDGES, class_of, label
from slurm_gpumem.estimators.published.features import FAMILIES, features
from slurm_gpumem.estimators.published.gpumemnet import (
    encoders,
    encoders_class,
    perceptrons,
    perceptrons_class,
)
from tests.support.needs import needs_torch

AUTHORS_MIB = 1545


def test_an_mlp_is_counted_as_in_the_authors_data() -> None:
    arguments = mlp_arguments("pyramid", 2346, 197, 2, "ReLU")
    drawn = Configuration("mlp", 0, 996, {**arguments, "dropout": 0.3, "norm": True})
    relu = 6 * pi / 11
    assert features(summary_of(drawn), 996).totals == (3, 996, 3_560_152, 7430, 2, 2, sin(relu), cos(relu))
    assert label(drawn) == pytest.approx(AUTHORS_MIB, rel=0.02)


def test_classes_are_those_of_the_authors_code() -> None:
    assert [class_of("mlp", mib) for mib in (1443, 2000, 2001, 5000, 9000)] == [0, 0, 1, 3, 4]
    assert [class_of("cnn", mib) for mib in (1703, 7999, 8000, 39_999, 40_000, 90_000)] == [0, 0, 1, 4, 5, 5]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_configuration_is_the_same_each_time_and_in_the_published_ranges(family: str) -> None:
    drawn = [configuration(family, number) for number in range(200)]
    assert drawn == [configuration(family, number) for number in range(200)]
    seen = [features(summary_of(one), one.batch) for one in drawn]
    assert {one.family for one in seen} == {family}
    batches = {"mlp": (1, 1024), "cnn": (2, 62), "transformer": (1, 128)}[family]
    assert all(batches[0] <= one.batch <= batches[1] for one in drawn)
    if family == "transformer":
        # Table 5.6: the output projections of attention are counted twice there, as linear and by themselves.
        assert all(9 <= one.totals[5] + one.totals[6] <= 157 for one in seen)
        assert all(4 <= one.totals[7] <= 78 and 6 <= one.totals[8] <= 117 for one in seen)


@pytest.mark.parametrize(("family", "least"), [("mlp", 0.9), ("cnn", 0.7), ("transformer", 0.7)])
@pytest.mark.parametrize("name", ["gpumemnet", "gpumemnet-transformer"])
def test_the_shipped_networks_know_configurations_that_they_were_not_trained_on(
    name: str, family: str, least: float
) -> None:
    answer = perceptrons_class if name == "gpumemnet" else encoders_class
    net = (perceptrons() if name == "gpumemnet" else encoders())[family]
    last = SIZES[family]
    drawn = [configuration(family, number) for number in range(last - 60, last)]
    right = [
        answer(net, features(summary_of(one), one.batch)) == class_of(family, label(one)) for one in drawn
    ]
    assert sum(right) / len(right) >= least
    assert net["edges"] == list(EDGES[family])


EXPORTS = """
import torch
torch.set_num_threads(1)
from slurm_gpumem.estimators.published import gpumemnet
from slurm_gpumem.estimators.published.features import Features
from lab.gpumemnet.ensembles import CNN_DEPTHS, Encoders, Perceptrons

torch.manual_seed(1)
net = Perceptrons(5, 3, CNN_DEPTHS)
wide = Encoders(4, 6, 2, 3)
for _ in range(20):
    net(torch.randn(32, 5) * 100)
    wide(torch.randn(32, 6, 4) * 100, torch.randn(32, 2) * 100)
net.eval(), wide.eval()
members, encoders = net.exported(), [encoder.exported() for encoder in wide.encoders]
for _ in range(20):
    totals, sequence, beside = torch.randn(5) * 100, torch.randn(6, 4) * 100, torch.randn(2) * 100
    theirs = net(totals[None])[0].tolist()
    ours = gpumemnet._mean(members, totals.tolist())
    assert max(abs(a - b) for a, b in zip(theirs, ours)) < 1e-3, (theirs, ours)
    found = Features("x", (), tuple(beside.tolist()), tuple(map(tuple, sequence.tolist())))
    for encoder, module in zip(encoders, wide.encoders):
        theirs = module(sequence[None], beside[None])[0].tolist()
        values = [*gpumemnet._encoded(encoder, found.sequence), *found.beside]
        ours = gpumemnet._mean(encoder["members"], values)
        assert max(abs(a - b) for a, b in zip(theirs, ours)) < 1e-3, (theirs, ours)
"""


@needs_torch
def test_exported_networks_compute_what_torch_computes() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EXPORTS],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
