"""submitit and Hydra on a real cluster: functions run with a share of a GPU, alone and in arrays."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Iterator

import pytest

submitit = pytest.importorskip("submitit", reason="submitit is not installed (extra `test`)")

from slurm_gpumem.adapters.submitit import GpumemExecutor, with_share  # noqa: E402
from slurm_gpumem.devcluster.cluster import Cluster  # noqa: E402

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(
        bool(os.environ.get("GPUMEM_TEST_SLURM_ROOT")), reason="a tree's Python has no submitit"
    ),
]
ROOT = Path(__file__).parents[2]
MODEL = ROOT / "docs" / "examples" / "resnet50.txt"
LAUNCHER = ROOT / "slurm_gpumem" / "adapters" / "hydra"
"""A wheel puts it into Hydra's namespace."""
_ENTRY = "slurm_gpumem.adapters.submitit:GpumemExecutor"


def _registered() -> bool:
    found = metadata.entry_points()
    group: Any = found.select(group="submitit") if hasattr(found, "select") else found.get("submitit", ())
    return any(entry.value == _ENTRY for entry in group)


needs_entry_point = pytest.mark.skipif(
    not _registered(), reason="installed without our entry point for submitit; pip install -e . adds it"
)


def what_i_have(number: int = 0) -> str:
    """Runs in the job."""
    # Of an array whose last task this is, Slurm shows them all.
    code = "scontrol show job $SLURM_JOB_ID | grep -o 'TresPerNode=[^ ]*' | head -1"
    shown = subprocess.run(["sh", "-c", code], capture_output=True, text=True, check=True).stdout
    return f"{number} {shown.strip()}"


@pytest.fixture
def on_cluster(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cluster]:
    for name, value in {**cluster.env, "XDG_CACHE_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    yield cluster
    cluster.run(["scancel", "-p", "gpu"], check=True)


def test_a_function_runs_with_the_share_that_its_model_needs(
    on_cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    executor = GpumemExecutor(tmp_path / "log", model=str(MODEL), batch_size=32)
    executor.update_parameters(time=5, partition="gpu", gpus_per_node=1, mem="64M")
    job = executor.submit(what_i_have)
    assert job.result().replace("/", ":").startswith("0 TresPerNode=gres:shard:")
    assert "asking for shard:" in capsys.readouterr().err
    comment = on_cluster.run(["scontrol", "show", "job", job.job_id], check=True).stdout
    assert "gpumem/1:est=" in comment


def test_an_array_of_which_nothing_is_known_has_its_first_task_measured(
    on_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = {"gpus_per_node": 1, "partition": "gpu", "array_parallelism": 20}
    first, again = (with_share(parameters, {}, tasks=6) for _ in range(2))
    assert first["array_parallelism"] == 1
    assert "gpus_per_node" not in first
    assert ",hold=20," in first["comment"]
    assert "one task is measured first" in capsys.readouterr().err
    # What one array took says nothing of the next: its functions are others.
    assert "fp=once" in first["comment"]
    assert first["comment"] != again["comment"]
    assert with_share(parameters, {}) == parameters


def test_every_task_of_an_array_has_it_too(on_cluster: Cluster, tmp_path: Path) -> None:
    executor = GpumemExecutor(tmp_path / "log", mem="6G")
    executor.update_parameters(time=5, gpus_per_node=1, mem="64M")
    jobs = executor.map_array(what_i_have, [1, 2])
    said = [job.result().replace("/", ":") for job in jobs]
    assert said == ["1 TresPerNode=gres:shard:6", "2 TresPerNode=gres:shard:6"]


def test_what_asks_for_no_share_stays_as_it_is(on_cluster: Cluster) -> None:
    parameters = {"time": 5, "gpus_per_node": 2, "setup": ["module load x"]}
    assert with_share(parameters, {"mem": "6G"}) == parameters


def test_a_share_takes_the_place_of_every_option_for_gpus(on_cluster: Cluster) -> None:
    more = {"gpu-bind": "none", "gres": "gpu:1"}
    found = with_share({"time": 5, "additional_parameters": more}, {"mem": "6G"})
    assert found["gres"] == "shard:6"
    assert found["additional_parameters"]["gpu-bind"] == "none"
    assert "gres" not in found["additional_parameters"]
    assert found["comment"].startswith("gpumem/1:")


@needs_entry_point
def test_submitit_finds_it_by_name_and_else_takes_its_own(on_cluster: Cluster, tmp_path: Path) -> None:
    assert submitit.AutoExecutor(tmp_path / "log").cluster == "slurm"
    executor = submitit.AutoExecutor(tmp_path / "log", cluster="gpumem")
    executor.update_parameters(timeout_min=5, gpus_per_node=1, gpumem_share={"mem": "6G"}, gpumem_mem="64M")
    assert "shard:6" in executor.submit(what_i_have).result()


@needs_entry_point
def test_a_hydra_sweep_runs_each_job_with_its_share(on_cluster: Cluster, tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="no hydra-submitit-launcher here")
    app = tmp_path / "train.py"
    app.write_text(
        "import hydra\nfrom pathlib import Path\nfrom tests.adapters.test_submitit import what_i_have\n"
        "@hydra.main(version_base=None)\ndef main(config):\n"
        f"    Path(r'{tmp_path}', f'said-{{config.lr}}').write_text(what_i_have())\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    words = ["-m", "hydra/launcher=gpumem", "+hydra.launcher.share.mem=6G", "hydra.launcher.timeout_min=5"]
    words += ["hydra.launcher.gpus_per_node=1", "hydra.launcher.mem_gb=1", "+lr=1,2"]
    done = subprocess.run(
        [sys.executable, str(app), *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(LAUNCHER)])},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert all("shard:6" in (tmp_path / f"said-{lr}").read_text() for lr in (1, 2))
