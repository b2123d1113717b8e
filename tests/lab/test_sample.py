"""From a configuration to jobs: the same for the same seed, balanced wherever the run is cut off."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="planning weighs models with torch")

from lab.collect.sample import Job, load_jobs
from lab.places import PLANS
from slurm_gpumem.errors import ConfigError

SMALL = """\
seed = {seed}
max_mib = 4000
max_step_seconds = 0.5
synthetic_max_mib = 2000
synthetic_max_step_seconds = 0.3
[real]
catalogues = ["own"]
rows_per_model = 2
[synthetic]
mlp = 20
cnn = 10
transformer = 5
[optimizers]
adam = 1
sgd = 1
[precisions]
fp32 = 1
[synthetic_precisions]
fp32 = 1
"""


def _write(folder: Path, seed: int = 1, more: str = "") -> Path:
    path = folder / "small.toml"
    path.write_text(SMALL.format(seed=seed) + more)
    return path


@pytest.fixture(scope="module")
def memory_jobs() -> list[Job]:
    return load_jobs(PLANS / "memory.toml")


def test_the_same_seed_gives_the_same_jobs_and_another_seed_others(tmp_path: Path) -> None:
    first = [job.key for job in load_jobs(_write(tmp_path))]
    assert first == [job.key for job in load_jobs(_write(tmp_path))]
    assert first != [job.key for job in load_jobs(_write(tmp_path, seed=2))]


def test_no_job_is_there_twice(memory_jobs: list[Job]) -> None:
    assert len({job.key for job in memory_jobs}) == len(memory_jobs)


def test_every_model_of_the_catalogue_comes_before_any_comes_again(memory_jobs: list[Job]) -> None:
    real = [job.entry.id for job in memory_jobs if not job.entry.family.startswith("synthetic")]
    models = len(set(real))
    assert len(set(real[:models])) == models


def test_a_run_that_is_cut_off_still_holds_a_balanced_sample(memory_jobs: list[Job]) -> None:
    half = memory_jobs[: len(memory_jobs) // 2]
    assert Counter(job.entry.id for job in half).most_common(1)[0][1] <= 0.03 * len(half)
    for family in ("synthetic-mlp", "synthetic-cnn", "synthetic-transformer"):
        assert 100 < sum(1 for job in half if job.entry.family == family) < len(half) / 4
    for optimizer, share in {"adam": 0.3, "adamw": 0.3, "sgd": 0.15, "sgd-momentum": 0.25}.items():
        drawn = sum(1 for job in half if job.optimizer == optimizer) / len(half)
        assert abs(drawn - share) < 0.04, optimizer


def test_batches_span_the_useful_range_and_keep_to_the_limits(memory_jobs: list[Job]) -> None:
    expected = sorted(job.expected_mib for job in memory_jobs)
    assert expected[len(expected) // 10] < 3000
    assert expected[-len(expected) // 10] > 10_000
    for job in memory_jobs:
        assert job.batch >= job.entry.min_batch, job.key
        assert job.expected_mib <= 60_000 * 1.01 or job.batch == job.entry.min_batch, job.key


@pytest.mark.parametrize("family", ["mlp", "cnn", "transformer"])
def test_synthetic_networks_come_in_several_shapes(family: str, memory_jobs: list[Job]) -> None:
    ids = [job.entry.id for job in memory_jobs if job.entry.id.startswith(f"{family}/")]
    assert len({name.split("-", 1)[1] for name in ids}) >= 3


def test_a_toggle_is_measured_beside_its_plain_run() -> None:
    jobs = load_jobs(PLANS / "toggles.toml")
    plain = {job.key for job in jobs if not job.toggles}
    for job in jobs:
        assert job.key.split("+")[0] in plain, job.key


def test_an_unknown_model_in_a_toggle_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path, more='[[toggle]]\nmodels = ["own/none"]\ntoggles = []\n')
    with pytest.raises(ConfigError, match="'own/none' is not in the catalogue"):
        load_jobs(path)


def test_a_configuration_without_a_seed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bare.toml"
    path.write_text("max_mib = 1\n")
    with pytest.raises(ConfigError, match=r"bare\.toml: lacks 'seed'"):
        load_jobs(path)
