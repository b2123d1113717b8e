"""Which processes take GPU memory in advance, seen in real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import slurm_gpumem
from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import NodeSpec
from slurm_gpumem.formats.job_record import preallocated
from slurm_gpumem.node.sampler.preallocation import Preallocators, framework_of
from tests.support.slurm_jobs import live_jobs, submit_shared, verified_peaks
from tests.support.waiting import until

MAPS = """
import mmap, sys
files = [open(path, "rb") for path in sys.argv[1:]]
held = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in files]
print("mapped", flush=True)
sys.stdin.read()
"""
JAX, TF, TORCH = (
    "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
    "tensorflow/libtensorflow_cc.so.2",
    "libtorch_cuda.so",
)


@contextmanager
def process(folder: Path, libraries: tuple[str, ...], env: dict[str, str], *title: str) -> Iterator[int]:
    paths = [folder / name for name in libraries]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 4096)
    argv = [sys.executable, "-c", MAPS, *map(str, paths)]
    command = ["bash", "-c", 'exec -a "$0" "$@"', *title, *argv] if title else argv
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("XLA", "TF_"))}
    with subprocess.Popen(
        command, env={**clean, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stdout.readline() == b"mapped\n"
        yield running.pid
        running.stdin.close()


@pytest.mark.parametrize(
    ("libraries", "env", "name"),
    [
        ((JAX,), {}, "JAX"),
        ((JAX,), {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".3"}, "JAX"),
        ((JAX,), {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, "JAX"),
        ((JAX,), {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, ""),
        ((JAX,), {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, ""),
        ((TF,), {}, "TensorFlow"),
        ((TF,), {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, ""),
        ((TF, TORCH), {}, ""),
        ((TORCH,), {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, ""),
    ],
)
def test_a_framework_is_known_by_what_is_loaded_and_how_it_was_started(
    tmp_path: Path, libraries: tuple[str, ...], env: dict[str, str], name: str
) -> None:
    with process(tmp_path, libraries, env) as pid:
        assert framework_of(pid) == name
    assert framework_of(pid) == ""  # it is gone


@pytest.mark.parametrize(
    ("title", "found"),
    [("VLLM::EngineCore", True), ("vllm serve m", True), ("python -m sglang.launch_server", True),
     ("python /home/a/vllm/train.py", False), ("python vllm_data.py", False)],
)  # fmt: skip
def test_a_server_is_known_by_its_command(tmp_path: Path, title: str, found: bool) -> None:
    with process(tmp_path, (), {}, title) as pid:
        assert bool(framework_of(pid)) is found


def test_only_a_job_that_holds_most_of_what_it_may_is_noted(tmp_path: Path) -> None:
    known = Preallocators()
    with process(tmp_path, (JAX,), {}) as pid:
        assert known.note([pid], 5_000, 12_000) is None
        assert known.note([pid], None, 12_000) is None
        note = known.note([pid], 9_000, 12_000)
    assert note is not None
    assert preallocated([note])
    assert known.note([pid], 9_000, 12_000) == note
    known.keep_only(frozenset())
    assert known.note([pid], 9_000, 12_000) is None


@pytest.mark.slurm
def test_on_a_cluster_a_share_starts_on_demand_and_a_server_in_it_shows_no_need(
    make_cluster: Callable[..., Cluster], state_folder: Path
) -> None:
    cluster = make_cluster(nodes=(NodeSpec("n1"),), hooks=True)
    script = state_folder / "job.sh"
    script.write_text(
        "#!/bin/bash\nenv | grep '^XLA_\\|^TF_FORCE' | sort\n"
        # Under another name Python finds neither itself nor its virtual environment.
        f"export PYTHONPATH={Path(slurm_gpumem.__file__).parents[1]} PYTHONHOME={sys.base_prefix}\n"
        f"exec -a 'vllm serve m' {sys.executable} -m slurm_gpumem.devcluster.standin "
        "--peak 9000 --steps 2000 --seconds 600\n"
    )
    live, out = cluster.layout.nodes / "n1" / "live.json", state_folder / "out"
    job = submit_shared(cluster, 10, f"bash {script}", output=str(out))
    until(lambda: verified_peaks(live) == {job: 9000.0}, but=lambda: out.read_text())
    assert out.read_text().startswith("TF_FORCE_GPU_ALLOW_GROWTH=true\nXLA_PYTHON_CLIENT_PREALLOCATE=false\n")
    until(lambda: live_jobs(live)[job]["notes"])
    cluster.run(["scancel", job], check=True)
    until(lambda: not cluster.run(["squeue", "-h"], check=True).stdout)
    gpumem = str(Path(sys.executable).with_name("gpumem"))
    shown = cluster.run([gpumem, "report", "-j", job, "--update"], timeout_s=60).stdout
    assert "note: took GPU memory in advance (an inference server): what it needs is not known" in shown
    assert "would have done" not in shown
    assert "took memory in advance: need not known" in cluster.run([gpumem, "report", "-l"]).stdout
