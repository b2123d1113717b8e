"""The learned correction: its file, its arithmetic, its bound, and where it knows that it does not know."""

from __future__ import annotations

import gzip
import json
from hashlib import sha256
from pathlib import Path

import pytest

from lab.fit.folds import FOLDS, fold_of, group_of, load_folds
from slurm_gpumem.data import data_path
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.corrected.anchors import anchors
from slurm_gpumem.estimators.corrected.features import KNOWN, NAMES
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.trees import SIZE_CAP, from_json, load, read_json
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary

SMALL = Path(__file__).parents[2] / "docs" / "examples" / "small-cnn.txt"
FILE = data_path("models", "correction.json")


def _estimate(text: str, batch: int = 64, gpu: str = "h200"):
    return registry.run("auto", read_summary(text), TrainingJob(batch), find_gpu(gpu))


def test_default_estimate_is_corrected_and_states_its_coverage() -> None:
    found = _estimate(SMALL.read_text())
    assert found.estimator == "corrected"
    assert found.coverage == 0.98
    assert found.floor_mib <= found.peak_mib <= found.request_mib
    assert sum(found.parts.values()) == found.peak_mib
    assert min(found.parts.values()) >= 0


def test_card_names_the_hash_of_the_file() -> None:
    assert sha256(FILE.read_bytes()).hexdigest() in data_path("models", "correction.md").read_text()


@pytest.mark.parametrize("name", ["small-cnn.txt", "resnet50.txt"])
def test_larger_batches_never_need_less(name: str) -> None:
    summary = read_summary((SMALL.parent / name).read_text())
    batches = [*range(1, 40), *range(61, 68), *range(120, 136), 200, 255, 256, 257, 1000, 1024, 1025]
    found = [registry.run("corrected", summary, TrainingJob(batch), find_gpu("h200")) for batch in batches]
    for field in ("peak_mib", "request_mib"):
        values = [getattr(estimate, field) for estimate in found]
        assert values == sorted(values)


def test_a_batch_between_two_powers_of_two_needs_what_lies_between() -> None:
    text = SMALL.read_text()
    below, between, above = (_estimate(text, batch) for batch in (64, 96, 128))
    assert abs(between.peak_mib - (below.peak_mib + above.peak_mib) / 2) <= 1
    assert between.job.batch_size == 96
    assert sum(between.parts.values()) == between.peak_mib


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 8, 100, 1023])
def test_anchors_share_a_batch_out_completely(batch: int) -> None:
    found = anchors(batch)
    assert sum(share for share, _ in found) == 1
    assert sum(share * size for share, size in found) == batch


def test_three_dimensional_convolutions_get_a_warning() -> None:
    text = SMALL.read_text().replace("Conv2d", "Conv3d")
    assert any("3-D convolutions" in warning for warning in _estimate(text).warnings)


def test_state_space_layers_get_a_warning_and_a_lower_coverage() -> None:
    text = SMALL.read_text().replace("Sequential", "MambaMixer")
    found = _estimate(text)
    assert any("MambaMixer" in warning for warning in found.warnings)
    assert found.coverage is not None
    assert found.coverage < 0.98
    assert found.request_mib > _estimate(SMALL.read_text()).request_mib


def test_another_gpu_is_said_to_be_unmeasured() -> None:
    said = _estimate(SMALL.read_text(), gpu="a100").assumptions
    assert any("unmeasured" in line for line in said)


def test_sizes_and_libraries_of_one_architecture_are_one_group() -> None:
    assert group_of("timm/resnet18") == group_of("torchvision/resnet50") == "resnet"
    assert group_of("cnn/0279-dense") != group_of("cnn/0278-dense")


def test_every_fold_has_a_correction_of_its_own() -> None:
    found = load_folds()
    assert len(found) == FOLDS
    assert (
        len({correction.center.trees[0][1] for correction in found}) > 1
        or len({correction.center.start for correction in found}) > 1
    )
    assert 0 <= fold_of("timm/resnet18") < FOLDS


@pytest.mark.parametrize("damage", ["nan", "huge", "feature", "deep", "missing", "features"])
def test_damaged_file_is_refused(damage: str) -> None:
    content = json.loads(FILE.read_text())
    if damage == "nan":
        content["center"]["trees"][0] = float("nan")
    elif damage == "huge":
        content["spread"]["start"] = 1e308
    elif damage == "feature":
        content["center"]["trees"][0] = [len(KNOWN), 0.5, 0, 0]
    elif damage == "deep":
        node = 0.0
        for _ in range(40):
            node = [0, 0.5, node, 0.0]
        content["center"]["trees"][0] = node
    elif damage == "missing":
        del content["spread"]
    else:
        content["features"] = content["features"][1:]
    with pytest.raises(ConfigError):
        from_json(content, "a file", KNOWN)


@pytest.mark.parametrize("text", ["", "[" * 100_000, "{}", " " * (SIZE_CAP + 1)])
def test_file_that_is_no_correction_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "correction.json"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load(path, KNOWN)


@pytest.mark.parametrize("damage", ["cut off", "garbled", "missing"])
def test_a_packed_file_that_cannot_be_unpacked_is_named(tmp_path: Path, damage: str) -> None:
    whole = gzip.compress(data_path("models", "correction.json").read_bytes())
    path = tmp_path / "folds.json.gz"
    if damage != "missing":
        path.write_bytes(whole[:5000] if damage == "cut off" else whole[:3000] + b"?" * 500 + whole[3500:])
    with pytest.raises(ConfigError, match=r"folds\.json\.gz"):
        read_json(path)


def test_plain_python_agrees_with_the_training_code_on_1000_rows() -> None:
    numpy = pytest.importorskip("numpy", reason="the training extra is not installed")
    pytest.importorskip("sklearn", reason="the training extra is not installed")
    from lab.fit import correction as fit
    from slurm_gpumem.estimators.trees import Ensemble

    draw = numpy.random.default_rng(0)
    values = draw.normal(size=(1000, len(NAMES)))
    target = values[:, 0] * values[:, 1] + draw.normal(size=1000)
    model = fit.fit_trees(values, target, 200)
    exported = json.loads(json.dumps(fit.export_trees(model)))
    plain = Ensemble(exported["start"], tuple(exported["trees"]))
    there = model.predict(values)
    assert max(abs(plain.predict(row) - want) for row, want in zip(values.tolist(), there)) <= 1e-6
