"""`gpumem calibrate` without a GPU: what it makes of readings, and what it says when there are none."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

from slurm_gpumem.errors import CalibrationError
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.node.nvml import Nvml
from slurm_gpumem.site.calibration_context import calibrate, calibration, put_entry, run_probe
from slurm_gpumem.site.calibration_probe import ROUNDING_CHECK, GpuReading, OwnMemory, VisibleGpu


def _probe(**changes: Any) -> Dict[str, Any]:
    probe = {
        "outside_mib": {"bare": 400, "conv": 410, "matmul": 480},
        "workspaces": [8519680, 8519680],
        "rounding": [[512, 2097152, 512, 2097152]] * len(ROUNDING_CHECK),
        "how": "NVML, own process",
        "crowded": False,
        "gpu": "NVIDIA A100-SXM4-40GB",
        "driver": "550.1",
        "memory_mib": 40960,
        "compute_capability": "8.0",
        "sms": 108,
        "torch": "2.11.0",
        "cuda": "13.0",
        "cudnn": "91900",
        "loading": "",
        "alloc_conf": "",
    }
    return {**probe, **changes}


_CALIBRATE = "import sys; from slurm_gpumem.cli.gpumem import main; sys.exit(main())"
SINGLE = _probe(outside_mib={"bare": 402, "matmul": 470})


def test_two_probes_make_one_entry_that_the_table_reads_back(tmp_path: Path) -> None:
    python, path = tmp_path / "python", tmp_path / "gpumem-gpus.toml"
    answers = f"case $3 in conv) echo '{json.dumps(_probe())}' ;; *) echo '{json.dumps(SINGLE)}' ;; esac"
    python.write_text(f"#!/bin/sh\n{answers}\n")
    python.chmod(0o755)
    put_entry(path, calibrate(str(python), "", "2026-01-31"))
    gpu = find_gpu("a100", path)
    assert (gpu.context_bare_mib, gpu.context_conv_mib, gpu.context_matmul_mib, gpu.context_mib) == (
        402, 410, 470, 480,
    )  # fmt: skip
    assert gpu.measured
    assert gpu.cublas_workspace_bytes == 8519680
    assert "2026-01-31: NVIDIA A100-SXM4-40GB, driver 550.1" in gpu.source
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_the_entry_takes_the_name_that_slurm_has_for_it() -> None:
    assert calibration(_probe(), SINGLE, name="A100_SXM", date="d").name == "a100_sxm"
    unknown = calibration(_probe(gpu="NVIDIA Thing 9000", memory_mib=1000), SINGLE, name="", date="d")
    assert unknown.name == "thing-9000"


def test_writing_again_replaces_its_own_section_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "gpumem-gpus.toml"
    path.write_text("# ours\n[a100]\ncontext_mib = 1\n\n[h100]  # new nodes\ncontext_mib = 700\n")
    put_entry(path, calibration(_probe(), SINGLE, name="", date="d"))
    text = path.read_text()
    assert text.startswith("# ours\n[h100]  # new nodes\ncontext_mib = 700\n")
    assert text.count("[a100]") == 1
    assert find_gpu("a100", path).context_mib == 480
    assert find_gpu("h100", path).context_mib == 700
    assert os.listdir(tmp_path) == [path.name]


def test_a_broken_site_file_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "gpumem-gpus.toml"
    path.write_text("[h100\n")
    with pytest.raises(Exception, match="not valid TOML"):
        put_entry(path, calibration(_probe(), SINGLE, name="", date="d"))
    assert path.read_text() == "[h100\n"
    assert os.listdir(tmp_path) == [path.name]


def test_a_difference_from_the_simulated_allocator_is_told() -> None:
    rows = [[512, 2097152, 512, 2097152], [512, 20971520, 512, 2097152]]
    notes = calibration(_probe(), {**SINGLE, "rounding": rows}, name="", date="d").notes
    assert any("rounds differently" in note and "20,971,520" in note for note in notes)
    assert any("as simulated" in note for note in calibration(_probe(), SINGLE, name="", date="d").notes)


def test_a_crowded_gpu_that_tells_no_process_is_refused() -> None:
    with pytest.raises(CalibrationError, match="idle GPU"):
        calibration(_probe(crowded=True, how="NVML, growth of the whole GPU"), SINGLE, name="", date="d")


def test_a_reading_of_nothing_is_refused() -> None:
    with pytest.raises(CalibrationError, match="cannot be read"):
        calibration(_probe(outside_mib={"bare": 0, "conv": 0, "matmul": 0}), SINGLE, name="", date="d")


# -- Reading the own process's memory ------------------------------------------------------------


class _Gpu(VisibleGpu):
    def __init__(self, readings: List[GpuReading]) -> None:
        self._readings = readings

    def read(self) -> GpuReading:
        return self._readings.pop(0)


def test_the_own_pid_is_taken_where_it_is_listed() -> None:
    memory = OwnMemory(
        _Gpu([GpuReading(100, 1000, {7: 100}), GpuReading(700, 1000, {7: 100, os.getpid(): 580})])
    )
    assert memory.read() == (580, "NVML, own process")
    assert memory.crowded


def test_in_a_container_the_only_new_process_is_taken() -> None:
    memory = OwnMemory(_Gpu([GpuReading(100, 1000, {7: 100}), GpuReading(700, 1000, {7: 100, 12345: 590})]))
    assert memory.read() == (590, "NVML, the only new process")


def test_without_a_process_list_the_growth_of_the_gpu_is_taken() -> None:
    memory = OwnMemory(_Gpu([GpuReading(100, 1000, {}), GpuReading(700, 1000, {})]))
    assert memory.read() == (600, "NVML, growth of the whole GPU")
    assert not memory.crowded


class _Driver(Nvml):
    """Two GPUs; MPS clients of the first are in a list of their own, the second has no such list."""

    def __init__(self) -> None:
        pass

    def devices(self) -> List[Tuple[int, str]]:
        return [(0, "GPU-a"), (1, "GPU-b")]

    def name(self, uuid: str) -> str:
        return {"GPU-a": "first", "GPU-b": "second"}[uuid]

    def driver(self) -> str:
        return "570.1"

    def memory_mib(self, uuid: str) -> Optional[Tuple[float, float]]:
        return 1000.5, 141_000.0

    def processes(self, uuid: str) -> List[Tuple[int, Optional[float]]]:
        return [(7, 600.2), (8, None)]

    def mps_processes(self, uuid: str) -> Optional[List[Tuple[int, Optional[float]]]]:
        return [(9, 300.0)] if uuid == "GPU-a" else None


@pytest.mark.parametrize(
    ("visible", "name", "processes"),
    [("", "first", {7: 600, 9: 300}), ("1,0", "second", {7: 600}), ("GPU-b", "second", {7: 600})],
)
def test_the_first_visible_gpu_is_read(
    monkeypatch: pytest.MonkeyPatch, visible: str, name: str, processes: Dict[int, int]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpu = VisibleGpu(_Driver())
    assert (gpu.name, gpu.driver, gpu.read()) == (name, "570.1", GpuReading(1000, 141_000, processes))


def test_a_gpu_that_the_driver_does_not_have_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with pytest.raises(OSError, match="no GPU 5"):
        VisibleGpu(_Driver())


# -- Where it cannot run -------------------------------------------------------------------------


def test_an_interpreter_without_torch_is_named(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    # -S -I: no site-packages, so no torch, whatever this machine has.
    bare.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -S -c "{_RUN_PROBE}" "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(CalibrationError, match=r"has no PyTorch.*\n.*--environment DIR"):
        run_probe(str(bare), ["matmul"])


_RUN_PROBE = (
    "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]; "
    "from slurm_gpumem.site.calibration_probe import main; sys.exit(main(sys.argv[1:]))"
)


def test_an_interpreter_that_cannot_be_run_is_named() -> None:
    with pytest.raises(CalibrationError, match="/nonexistent/python: cannot be run"):
        run_probe("/nonexistent/python", ["matmul"])


def test_a_probe_that_dies_leaves_its_last_words(tmp_path: Path) -> None:
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\necho 'CUDA error: out of memory' >&2\nexit 1\n")
    dying.chmod(0o755)
    with pytest.raises(CalibrationError, match="CUDA error: out of memory"):
        run_probe(str(dying), ["matmul"])


def test_the_command_says_what_is_missing_on_a_node_without_a_gpu() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CALIBRATE, "calibrate", "--print"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": "/nonexistent", "CUDA_VISIBLE_DEVICES": ""},
        check=False,
    )
    if done.returncode == 0:
        pytest.skip("there is a GPU here")
    assert done.returncode == 1
    assert "srun --gres=gpu:1 gpumem calibrate" in done.stderr or "--environment DIR" in done.stderr
    assert "Traceback" not in done.stderr
