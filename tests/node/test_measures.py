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


def test_the_start_of_a_job_without_an_estimate_does_not_count_as_its_activity_alone() -> None:
    usage, alone = GpuUsage(), frozenset([1])
    for mib, active in ((500.0, 0.0), (1500.0, 0.05), (9000.0, 0.8), (9500.0, 0.8)):
        usage.add_memory(mib, 1, 6.0)
        usage.add_activity(Stretch(GpuSample(sm_active=active), 6.0, None, 1, 1, alone), 1, held=True)
    assert usage.figures().alone_sm == 0.8


def test_dcgm_is_asked_for_its_own_numbers() -> None:
    assert FIELDS.items() >= {1002: "sm_active", 1003: "sm_occupancy", 1005: "dram_active"}.items()
