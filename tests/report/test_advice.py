from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_gpumem.formats.job_record import PREALLOCATED
from slurm_gpumem.report.job import advice, job_lines
from tests.accounting.job_records import UUID, opened, record, write


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "12 shards would have done"),
        ({"peak_mib": 6000.0}, "6 shards would have done; batch 256 would still fit"),
        (
            {"shards": 20, "limit_mib": 20_480},
            "memory alone takes 12 of its 20 shards; batch 224 would still fit",
        ),
        ({"peak_mib": 13_000.0}, "it needed its 13 shards"),
        ({"peak_mib": 14_000.0}, "it took more than its 13 shards: it needs 14"),
        (
            {"shards": None, "limit_mib": None},
            "12 shards of the GPU's 40 would have done; batch 448 would still fit",
        ),
        (
            {"exit_code": 1, "state": "FAILED", "verdict": "oom"},
            "batch 112 may fit",
        ),
        ({"end": None, "state": None}, ""),
        ({"peak_mib": None}, ""),
        (
            {"notes": [f"{PREALLOCATED} (JAX): what it needs is not known"]},
            "to see what it needs, and share by that: export XLA_PYTHON_CLIENT_PREALLOCATE=false (JAX) or "
            "TF_FORCE_GPU_ALLOW_GROWTH=true (TensorFlow); a server takes the part that it is given",
        ),
    ],
)
def test_advice_is_one_line_of_what_to_do(tmp_path: Path, changes: Any, said: str) -> None:
    write(tmp_path / "spool", record(1, **changes))
    with opened(tmp_path) as store:
        (row,) = store.select()
    assert advice(row, 1024) == said


def test_a_job_that_leaves_its_gpu_idle_is_told(tmp_path: Path) -> None:
    table = record(1)
    for values in table["gpu"].values():
        values["sm_active_share"] = 0.04
    write(tmp_path / "spool", table)
    with opened(tmp_path) as store:
        (row,) = store.select()
    assert advice(row, 1024).endswith("the GPU waited for it most of the time (4% SM activity)")


def test_a_job_on_a_mig_instance_is_shown_with_its_profile(tmp_path: Path) -> None:
    name = "NVIDIA H200 MIG 1g.18gb"
    figures = {"number": 1, "name": name, "memory_mib": 16384.0, "instance": "3/0", "peak_mib": 9000.0}
    made = record(
        1, mode="mig", shards=None, limit_mib=16384, peak_mib=9000.0, met=[], gpus=[UUID], gpu={UUID: figures}
    )
    write(tmp_path / "spool", made)
    with opened(tmp_path) as store:
        (row,) = store.select()
        detail = store.detail(row)
    assert (row.gpu, row.sharing, row.granted_mib) == ("h200 1g.18gb", "mig", 16384)
    text = "\n".join(job_lines(detail, 1024, unicode=True))
    assert "a MIG instance (h200 1g.18gb, 16.0G)" in text
    assert "gpu1:1g.18gb" in text
    assert "whole GPU" not in text
    assert "alone on its GPU" not in text
    assert "shard" not in text
