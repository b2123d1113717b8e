"""The reference set: rates that a GPU really has, from how long five known jobs take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict

import pytest

from slurm_gpumem.errors import CalibrationError
from slurm_gpumem.memory.calibrate import Calibration
from slurm_gpumem.memory.gpus import find_gpu
from slurm_gpumem.utilization.calibrate import calibrated
from slurm_gpumem.utilization.model import packaged
from slurm_gpumem.utilization.predict import SUMMARY
from slurm_gpumem.utilization.reference import REFERENCES, compare, rates_from, work_of_reference
from slurm_gpumem.utilization.roofline import rates_of, step_times

A100 = find_gpu("a100")
COEFFICIENTS = packaged().sources[SUMMARY].coefficients


def taken(gpu: Any) -> Dict[str, Dict[str, float]]:
    """What the reference set would take on a GPU that is just as the roofline says."""
    return {
        reference.name: {
            "step_seconds": step_times(work_of_reference(reference, gpu), rates_of(gpu), COEFFICIENTS).step
        }
        for reference in REFERENCES
    }


def test_each_job_is_bound_by_what_it_stands_for() -> None:
    for reference in REFERENCES:
        times = step_times(work_of_reference(reference, A100), rates_of(A100), COEFFICIENTS)
        assert (times.cpu > times.gpu) == (reference.bound_by == "host"), reference.name


def test_a_gpu_as_in_the_table_keeps_its_rates() -> None:
    fields = rates_from(compare(taken(A100), A100, packaged()), A100)
    assert fields["tflops"] == pytest.approx(A100.tflops, rel=0.01)
    assert fields["bandwidth_gb_s"] == pytest.approx(A100.bandwidth_gb_s, rel=0.01)
    assert fields["host_factor"] == pytest.approx(1.0, rel=0.01)
    assert fields["utilization_measured"] is True


def test_a_slower_cpu_and_slower_memory_are_found() -> None:
    real = replace(A100, host_factor=1.8, bandwidth_gb_s=1000)
    fields: Dict[str, Any] = rates_from(compare(taken(real), A100, packaged()), A100)
    assert fields["host_factor"] == pytest.approx(1.8, rel=0.1)
    assert fields["bandwidth_gb_s"] == pytest.approx(1000, rel=0.15)
    assert fields["tflops"] == pytest.approx(A100.tflops, rel=0.15)


def test_the_entry_keeps_its_memory_fields_and_gains_rates() -> None:
    probe = {"gpu": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, "jobs": taken(A100), "failed": {}}
    entry = calibrated(Calibration("a100", (("context_mib", 612),), ("read by nvml",)), probe)
    text = entry.as_toml()
    assert "context_mib = 612" in text
    assert "utilization_measured = true" in text
    assert "host_factor = 1.0" in text
    assert any("reference set, activations" in note for note in entry.notes)


def test_a_set_that_could_not_be_trained_is_an_error() -> None:
    probe = {"gpu": "x", "memory_mib": 1, "jobs": {}, "failed": {"activations": "out of memory"}}
    with pytest.raises(CalibrationError, match="out of memory"):
        calibrated(Calibration("x", (), ()), probe)
