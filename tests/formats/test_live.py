from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.formats.job_record import GpuFigures, Measurement
from slurm_gpumem.formats.live import (
    GpuSample,
    Live,
    LiveGpu,
    LiveJob,
    live_from,
    live_table,
    read_live,
    write_live,
)
from tests.formats.any_json import JSON

LIVE = Live(
    node="n1",
    at=1_700_000_000.5,
    interval_s=1.0,
    source="gpm",
    gpus={
        "GPU-aa": LiveGpu(
            0, "NVIDIA A100", "3/0", 66.0, 2, 7.5, GpuSample(9282.5, 81_920.0, 0.5, power_w=310.5)
        ),
        "GPU-bb": LiveGpu(),
    },
    jobs={
        4711: LiveJob(
            user="usr1",
            mode="mps",
            gpus=("GPU-aa",),
            estimate_mib=9000,
            request_mib=10_240,
            restarts=1,
            now_mib={"GPU-aa": 9216.0},
            processes=1,
            notes=("a note",),
            measured=Measurement(shards=10, peak_mib=9216.0, gpu={"GPU-aa": GpuFigures(peak_mib=9216.0)}),
        )
    },
)


def test_what_is_written_is_read_back_by_root_alone(tmp_path: Path) -> None:
    write_live(tmp_path / "live.json", LIVE)
    assert read_live(tmp_path / "live.json") == LIVE
    assert stat.S_IMODE((tmp_path / "live.json").stat().st_mode) == 0o600


def test_what_a_source_does_not_know_of_a_gpu_is_left_out() -> None:
    gpus = live_table(LIVE)["gpus"]
    assert "sm_occupancy" not in gpus["GPU-aa"]
    assert gpus["GPU-bb"] == {"name": ""}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": "gpumem-live/9"}'])
def test_a_file_that_is_none_is_no_live_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "live.json").write_text(text)
    assert read_live(tmp_path / "live.json") is None
    assert read_live(tmp_path / "missing") is None


@given(st.dictionaries(st.sampled_from(sorted(live_table(LIVE))), JSON), JSON, JSON)
def test_whatever_stands_in_the_file_it_can_be_read_and_written_again(top: Any, gpu: Any, job: Any) -> None:
    table = {**live_table(LIVE), **top}
    found = live_from({**table, "gpus": {"GPU-aa": gpu}, "jobs": {"1": job, "x": job}})
    again = live_from(json.loads(json.dumps(live_table(found))))
    assert again == found
    live_from(table)
