from __future__ import annotations

import base64
import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.simulation.what_if import JOBSTATS, RECORDS, SLURM, GpuUse, gpu_use, read_jobstats
from slurm_gpumem.slurm.state.history import PastJob
from slurm_gpumem.utilization.interference import packaged

JOB = PastJob("7", "anna", "gpu", 0, 1, 2, 0, ("n1",), 1, None, None, None, "")
SUMMARY = {
    "nodes": {
        "n1": {"total_memory": 1, "used_memory": 1, "cpus": 8, "total_time": 3.0,
               "gpu_total_memory": {"0": 42949672960, "1": 42949672960},
               "gpu_used_memory": {"0": 9 << 30, "1": 11 << 30}, "gpu_utilization": {"0": 80.0, "1": 60.0}}
    },
    "total_time": 100, "gpus": 2,
}  # fmt: skip


@pytest.mark.parametrize("packed", [True, False])
def test_a_jobstats_summary_is_read_packed_or_not(packed: bool) -> None:
    data = json.dumps(SUMMARY).encode()
    text = "JS1:" + base64.b64encode(gzip.compress(data) if packed else data).decode()
    found = read_jobstats(text)
    assert found == GpuUse((11 << 10) + 1, pytest.approx(1 - 0.3**0.4), JOBSTATS)


@pytest.mark.parametrize("text", ["JS1:Short", "JS1:None", "JS1:", "JS1:e30=", "JS1:W10=", "JS1:!!!"])
def test_one_that_says_nothing_is_nothing(text: str) -> None:
    assert read_jobstats(text) is None


@given(st.binary(max_size=60))
def test_a_damaged_one_is_nothing(data: bytes) -> None:
    read_jobstats("JS1:" + base64.b64encode(data).decode())
    read_jobstats("JS1:" + base64.b64encode(b"\x1f\x8b" + data).decode())


def test_a_bomb_is_not_unpacked_beyond_its_limit() -> None:
    bomb = gzip.compress(b"[" * (1 << 26))
    assert read_jobstats("JS1:" + base64.b64encode(bomb).decode()) is None


def test_our_own_records_come_first_then_slurm_then_jobstats() -> None:
    comment = "JS1:" + base64.b64encode(json.dumps(SUMMARY).encode()).decode()
    job = JOB._replace(gpu_mib=5000.0, gpu_util=0.5, comment=comment)
    own = GpuUse(4000, 0.4, RECORDS)
    assert gpu_use(job, {"7": own}) == own
    assert gpu_use(job, {}) == GpuUse(5001, pytest.approx(1 - 0.5**0.4), SLURM)
    later = gpu_use(job._replace(gpu_mib=None), {})
    assert later is not None
    assert later.source == JOBSTATS
    assert gpu_use(JOB, {}) is None


@pytest.mark.parametrize("busy", [0.0, 0.3, 0.9, 1.0])
def test_time_with_any_kernel_becomes_the_activity_that_keeps_the_gpu_busy_that_long(busy: float) -> None:
    found = gpu_use(JOB._replace(gpu_mib=5000.0, gpu_util=busy), {})
    assert found is not None
    assert found.active is not None
    assert 1 - (1 - found.active) ** packaged().turns.need == pytest.approx(busy)
