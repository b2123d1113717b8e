"""GPUMemNet's estimators: they count as their authors do, and answer without torch or numpy."""

from __future__ import annotations

import lzma
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.published import gpumemnet
from slurm_gpumem.estimators.published.features import FAMILIES, counted, family_of, features
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import Layer, ModelSummary

NETWORKS = {"gpumemnet": gpumemnet.perceptrons, "gpumemnet-transformer": gpumemnet.encoders}
NAMES = tuple(NETWORKS)
RESNET = Path(__file__).parents[2] / "docs" / "examples" / "resnet50.txt"


def _summary(*layers: Layer) -> ModelSummary:
    total = sum(layer.params for layer in layers)
    return ModelSummary("test", layers, batch=2, total_params=total, trainable_params=total)


TRANSFORMER = _summary(
    Layer("Embedding", ((2, 16, 64),), params=640),
    Layer("MultiheadAttention", ((2, 16, 64),), params=100, leaf=False),
    Layer("Dropout", ((2, 16, 64),)),
    Layer("LayerNorm", ((2, 16, 64),), params=128),
    Layer("Linear", ((2, 16, 256),), params=10),
    Layer("Dropout", ((2, 16, 256),)),
    Layer("Linear", ((2, 5),), params=20),
)


def test_a_cnn_is_counted_without_its_pooling() -> None:
    cnn = _summary(
        Layer("Conv2d", ((2, 8, 4, 4),), params=80),
        Layer("BatchNorm2d", ((2, 8, 4, 4),), params=16),
        Layer("ReLU", ((2, 8, 4, 4),)),
        Layer("MaxPool2d", ((2, 8, 2, 2),)),
        Layer("AdaptiveAvgPool2d", ((2, 8, 1, 1),)),
        Layer("Linear", ((2, 10),), params=90),
    )
    found = features(cnn, 32)
    assert found.family == "cnn"
    # Depth, activations, times the batch, parameters, batch, convolutions, norms, dropouts, then ReLU.
    assert found.totals[:8] == (5, 3 * 128 + 8 + 10, 32 * 402, 186, 32, 1, 1, 0)
    assert found.totals[8:] == pytest.approx((1.0, 0.0), abs=1e-9)
    assert found.sequence[0] == (0.0, 1.0, 128 * 32, 80)
    assert found.beside == (32, 186, 402, 402 * 32, 1, 1, 0, 1, 0)


def test_a_transformers_linear_layers_count_the_features_of_one_token() -> None:
    assert family_of(TRANSFORMER) == "transformer"
    made = [row.activations for row in counted(TRANSFORMER, "transformer")]
    assert made == [1024, 64, 64, 64, 256, 256, 5]
    found = features(TRANSFORMER, 4)
    assert found.totals == (7, 1733, 4 * 1733, 898, 4, 1, 3, 1, 2)
    # Norms and dropouts are not multiplied by the batch.
    assert found.sequence[3] == (1.0, 0.0, 0.0, 0.0, 64, 128)
    assert found.sequence[4] == (0.0, 0.0, 1.0, 0.0, 1024, 10)


def test_conv1d_of_gpt2_carries_the_count_before_it_on() -> None:
    gpt2 = _summary(
        Layer("Embedding", ((2, 16, 64),), params=640),
        Layer("Conv1D", ((2, 16, 192),), params=10),
        Layer("LayerNorm", ((2, 16, 64),), params=2),
    )
    assert [row.activations for row in counted(gpt2, "transformer")] == [1024, 1024, 1024]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_network_whose_classes_have_edges(name: str, family: str) -> None:
    found = NETWORKS[name]()[family]
    edges = found["edges"]
    assert edges == sorted(edges)
    heads = [found] if name == "gpumemnet" else found["encoders"]
    for head in heads:
        members = 16 if (name, family) == ("gpumemnet", "cnn") else 13
        assert len(head["members"]) == members
        assert {len(layers[-1][1]) for layers in head["members"]} == {len(edges)}


@pytest.mark.parametrize("name", NAMES)
def test_a_larger_batch_is_in_no_lower_class_for_resnet50(name: str) -> None:
    summary = read_summary(RESNET.read_text())
    gpu = find_gpu("a100-80gb")
    answers = [registry.run(name, summary, TrainingJob(batch), gpu).peak_mib for batch in (1, 32, 512)]
    assert answers[0] < answers[2]
    assert all(answer in NETWORKS[name]()["cnn"]["edges"] for answer in answers)


def test_an_answer_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys\nfrom slurm_gpumem import estimate\n"
        f"for name in {NAMES!r}:\n"
        f"    print(estimate({str(RESNET)!r}, batch_size=8, gpu='a100', estimator=name).peak_mib)\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 2


@pytest.mark.parametrize("content", [b"no xz", lzma.compress(b"{}"), lzma.compress(b'{"format": "x"}')])
def test_a_damaged_file_of_networks_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "gpumemnet.json.xz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is no file of networks"):
        gpumemnet.load(path)
