"""The table of what is measured agrees with what a sample holds and a record keeps."""

from __future__ import annotations

from slurm_gpumem.formats.job_record import GpuFigures
from slurm_gpumem.formats.live import GpuSample
from slurm_gpumem.node.sampler.usage import GpuUsage, Stretch
from slurm_gpumem.node.sources.base import MEASURES
from slurm_gpumem.node.sources.dcgm import FIELDS


def test_every_value_of_a_sample_has_one_row() -> None:
    assert [measure.field for measure in MEASURES] == [*GpuSample._fields]


def test_a_record_has_the_mean_of_every_value_that_wants_one() -> None:
    usage = GpuUsage()
    values = {measure.field: 0.25 for measure in MEASURES}
    usage.add_activity(Stretch(GpuSample(**values), 2.0, None, 1, 1), 1, held=True)
    means = [f"gpu_{measure.field}" for measure in MEASURES if measure.mean]
    assert [getattr(usage.figures(), mean) for mean in means] == [0.25] * len(means)
    assert [field for field in GpuFigures._fields if field.startswith("gpu_")] == means


def test_dcgm_is_asked_for_its_own_numbers() -> None:
    assert FIELDS.items() >= {1002: "sm_active", 1003: "sm_occupancy", 1005: "dram_active"}.items()
