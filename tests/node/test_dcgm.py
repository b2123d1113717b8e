from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.formats.live import GpuSample
from slurm_gpumem.node.sources.dcgm import DcgmSource, parse_dmon
from tests.support.waiting import until

FIELDS = {1002: "sm_active", 1003: "sm_occupancy", 1005: "dram_active"}
"""What was asked for when these were printed."""
DOCUMENTED = """#Entity   SMACT        SMOCC        DRAMA
ID
GPU 1     0.000        0.000        0.000
GPU 0     0.984        0.412        0.337
#Entity   SMACT        SMOCC        DRAMA
ID
GPU 1     N/A          N/A          N/A
"""
OLDER = """# Entity  SMACT  SMOCC  DRAMA
      Id
    GPU 0  0.995  0.249  0.101
    GPU-I 0  0.995  0.249  0.101
    GPU-CI 0  0.995  0.249  0.101
"""


def test_the_last_values_of_each_gpu_are_read() -> None:
    assert parse_dmon(DOCUMENTED.splitlines(), FIELDS) == {
        0: {"sm_active": 0.984, "sm_occupancy": 0.412, "dram_active": 0.337},
        1: {"sm_active": None, "sm_occupancy": None, "dram_active": None},
    }


def test_parts_of_a_mig_gpu_are_no_gpus() -> None:
    assert parse_dmon(OLDER.splitlines(), FIELDS) == {
        0: {"sm_active": 0.995, "sm_occupancy": 0.249, "dram_active": 0.101}
    }


@pytest.mark.parametrize(
    "line", ["", "Error: unable to connect to host engine", "GPU 0 0.5", "GPU x 1 1 1", "GPU 0 1 1 1 1"]
)
def test_lines_of_other_shapes_are_passed_over(line: str) -> None:
    assert parse_dmon([line], FIELDS) == {}


@given(st.lists(st.text(max_size=60), max_size=5))
def test_no_output_breaks_the_parser(lines: list[str]) -> None:
    for values in parse_dmon(lines).values():
        assert all(value is None or 0 <= value <= 1.5 for value in values.values())


class _Nvml:
    """What DCGM is laid over."""

    def sample(self, uuid: str) -> GpuSample:
        return GpuSample(memory_used_mib=1.0, power_w=300.0)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture
def dcgmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dcgmi that prints what is in a file and then waits or ends."""
    program = tmp_path / "dcgmi"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/output\n[ -e {tmp_path}/stay ] && exec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "stay").touch()
    return tmp_path


def test_its_values_are_laid_over_nvmls(dcgmi: Path) -> None:
    (dcgmi / "output").write_text(DOCUMENTED)
    source = DcgmSource(_Nvml(), {"GPU-aa": 0, "GPU-bb": 1}, 1.0, FIELDS)  # type: ignore[arg-type]
    assert source.answers()
    assert source.sample("GPU-aa") == GpuSample(
        1.0, sm_active=0.984, sm_occupancy=0.412, dram_active=0.337, power_w=300.0
    )
    assert source.sample("GPU-bb").sm_active is None
    source.close()


def test_a_host_engine_that_is_away_is_no_source(dcgmi: Path) -> None:
    (dcgmi / "stay").unlink()
    (dcgmi / "output").write_text(
        "Error: unable to establish a connection to the specified host: localhost\n"
    )
    assert not DcgmSource(_Nvml(), {"GPU-aa": 0}, 1.0, FIELDS).answers()  # type: ignore[arg-type]


def test_old_values_do_not_outlive_the_program(dcgmi: Path) -> None:
    (dcgmi / "stay").unlink()
    (dcgmi / "output").write_text(DOCUMENTED)
    source = DcgmSource(_Nvml(), {"GPU-aa": 0}, 1.0, FIELDS)  # type: ignore[arg-type]
    source.answers(1.0)
    until(lambda: source.sample("GPU-aa").sm_active is None)
    source.close()
