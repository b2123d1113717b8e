"""The reference set: rates that a GPU really has, from how long five known jobs take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict

import pytest

from slurm_gpumem.data import data_path
from slurm_gpumem.errors import CalibrationError, ConfigError
from slurm_gpumem.estimators.gpus import find_gpu, gpu_table
from slurm_gpumem.site.calibration.context import Calibration, put_entry
from slurm_gpumem.site.calibration.rates import (
    FILE,
    REFERENCES,
    SM_FIELD,
    STEP_FIELD,
    compare,
    fitted_seconds,
    rates_from,
    work_of_reference,
)
from slurm_gpumem.site.calibration.utilization import calibrated
from slurm_gpumem.toml_file import load_toml
from slurm_gpumem.utilization.model import UtilizationModel, packaged
from slurm_gpumem.utilization.predict import SUMMARY
from slurm_gpumem.utilization.roofline import rates_of, step_times

A100, H200 = find_gpu("a100"), find_gpu("h200")
COEFFICIENTS = packaged().sources[SUMMARY].coefficients
Taken = Dict[str, Dict[str, float]]


def taken(gpu: Any) -> Taken:
    """What the reference set takes on a GPU that differs from the measured one as the roofline says."""
    found: Taken = {}
    for reference in REFERENCES:
        work = work_of_reference(reference, gpu)
        scale = step_times(work, rates_of(gpu), COEFFICIENTS).step
        scale /= step_times(work, rates_of(H200), COEFFICIENTS).step
        found[reference.name] = {"step_seconds": fitted_seconds()[reference.bound_by] * scale}
    return found


def shipped() -> Taken:
    """What was measured on the H200."""
    entry = load_toml(data_path("models", FILE))["h200"]
    return {
        reference.name: {"step_seconds": step / 1000, "sm_active": active}
        for reference, step, active in zip(REFERENCES, entry[STEP_FIELD], entry[SM_FIELD])
    }


def biased(factor: float) -> UtilizationModel:
    """A model that believes in rates other than ours."""
    model = packaged()
    fitted = model.sources[SUMMARY]
    wrong = {name: value * factor for name, value in fitted.coefficients.items()}
    return model._replace(sources={SUMMARY: fitted._replace(coefficients=wrong)})


def test_each_job_is_bound_by_what_it_stands_for() -> None:
    for reference in REFERENCES:
        times = step_times(work_of_reference(reference, A100), rates_of(A100), COEFFICIENTS)
        assert (times.cpu > times.gpu) == (reference.bound_by == "host"), reference.name


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.7])
def test_on_the_gpu_of_the_measurements_the_tables_rates_come_back_whatever_the_models_bias(
    factor: float,
) -> None:
    fields: Dict[str, Any] = rates_from(compare(shipped(), H200, biased(factor)), H200)
    assert fields["tflops"] == pytest.approx(H200.tflops, rel=0.01)
    assert fields["bandwidth_gb_s"] == pytest.approx(H200.bandwidth_gb_s, rel=0.01)
    assert fields["host_factor"] == pytest.approx(1.0, rel=0.01)


def test_a_second_run_that_differs_by_two_percent_moves_the_rates_by_two_percent() -> None:
    again = {
        name: {**values, "step_seconds": 1.02 * values["step_seconds"]} for name, values in shipped().items()
    }
    fields: Dict[str, Any] = rates_from(compare(again, H200, packaged()), H200)
    assert fields["tflops"] == pytest.approx([rate / 1.02 for rate in H200.tflops], rel=0.005)
    assert fields["bandwidth_gb_s"] == pytest.approx(4800 / 1.02, rel=0.005)
    assert fields["host_factor"] == pytest.approx(1.02, rel=0.005)


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


def test_a_gpu_that_the_table_does_not_know_gets_rates_by_comparison_with_the_measured_one() -> None:
    unknown = replace(H200, name="new", tflops=(), bandwidth_gb_s=None)
    half_as_fast = {name: {"step_seconds": 2 * values["step_seconds"]} for name, values in shipped().items()}
    fields: Dict[str, Any] = rates_from(compare(half_as_fast, unknown, packaged()), unknown)
    assert fields["tflops"] == pytest.approx([rate / 2 for rate in H200.tflops], rel=0.01)
    assert fields["bandwidth_gb_s"] == 2400


def test_the_entry_keeps_its_memory_fields_and_gains_rates() -> None:
    probe = {"gpu": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, "jobs": taken(A100), "failed": {}}
    entry = calibrated(Calibration("a100", (("context_mib", 612),), ("read by nvml",)), probe)
    text = entry.as_toml()
    assert "context_mib = 612" in text
    assert "utilization_measured = true" in text
    assert "host_factor = 1.0" in text
    assert any("reference set, activations" in note for note in entry.notes)


def test_what_is_printed_on_the_gpu_of_the_measurements_can_be_pasted_as_the_shipped_times(
    tmp_path: Path,
) -> None:
    probe = {"gpu": "NVIDIA H200", "memory_mib": 143771, "jobs": shipped(), "failed": {}}
    entry = calibrated(Calibration("h200", (("memory_mib", 143771),), ()), probe)
    pasted = tmp_path / FILE
    pasted.write_text(entry.as_toml())
    assert fitted_seconds(pasted) == fitted_seconds()
    put_entry(tmp_path / "gpumem-gpus.toml", entry)
    assert find_gpu("h200", tmp_path / "gpumem-gpus.toml").tflops == pytest.approx(H200.tflops, rel=0.01)


def test_a_damaged_file_of_shipped_times_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("[h200]\nreference_step_ms = [1.0, 2.0, -3.0, 4.0, 5.0]\n")
    with pytest.raises(ConfigError, match="must be 5 numbers of milliseconds"):
        fitted_seconds(tmp_path / FILE)


def test_a_set_that_could_not_be_trained_is_an_error() -> None:
    probe = {"gpu": "x", "memory_mib": 1, "jobs": {}, "failed": {"activations": "out of memory"}}
    with pytest.raises(CalibrationError, match="out of memory"):
        calibrated(Calibration("x", (), ()), probe)


UNITS = {"6.0": 64, "7.0": 64, "7.5": 64, "8.0": 64}
"""Units for fp32 in a multiprocessor, where they are not 128."""
UNLIKE = ("a10g", "h20")
"""Their published rates do not fit their published clocks."""


@pytest.mark.parametrize("name", sorted(gpu_table(Path("/nonexistent"))))
def test_the_tables_peak_rate_is_what_its_multiprocessors_make_at_its_clock(name: str) -> None:
    gpu = find_gpu(name, Path("/nonexistent"))
    assert gpu.sms is not None
    assert gpu.clock_mhz is not None
    made = 2e-6 * gpu.sms * UNITS.get(gpu.compute_capability, 128) * gpu.clock_mhz
    assert gpu.tflops[0] == pytest.approx(made, rel=0.15 if name in UNLIKE else 0.01)
    assert gpu.tflops[0] <= gpu.tflops[1] <= gpu.tflops[2]
