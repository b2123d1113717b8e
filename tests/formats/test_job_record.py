"""The job record: what is written is read back, and nothing that stands in a file is believed blindly."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.formats.job_record import (
    WITHOUT_MPS,
    BadRecordError,
    FaultEvent,
    GpuFigures,
    JobRecord,
    Measurement,
    job_record_from,
    job_record_table,
    parse_job_record,
    read_job_record,
    record_name,
    write_job_record,
)
from tests.accounting.job_records import record
from tests.formats.any_json import JSON

FULL = JobRecord(
    job_id=4711,
    restarts=1,
    uid=os.geteuid(),
    node="n1",
    start=1_700_000_000.5,
    cluster="site",
    partition="gpu",
    user="usr1",
    mode="mps",
    gpus=("GPU-aa", "GPU-bb"),
    claim=CommentRecord(estimate_mib=9000, request_mib=9500, model="resnet50", other=(("new", "x"),)),
    measured=Measurement(
        shards=10,
        shards_verified=True,
        limit_mib=10_240,
        peak_mib=9200.5,
        mean_mib=8000.0,
        energy_j=12.5,
        gpu={
            "GPU-aa": GpuFigures(
                0,
                "NVIDIA A100",
                40_960.0,
                "3/0",
                9200.5,
                8000.0,
                12.5,
                0.4,
                60.5,
                1.5,
                "predicted",
                0.7,
                3.5,
                90.0,
                "",
                0.8,
                0.2,
                0.3,
                0.9,
                310.0,
            ),
            "GPU-bb": GpuFigures(curve="1.0 60.0;500 -;40 -"),
        },
        met=(4712, 4713),
        samples=60,
        events=(
            FaultEvent("xid", "GPU-aa", 1_700_000_100.0, (4712,), 31),
            FaultEvent("mps-fault", "GPU-aa", 1_700_000_101.0, ()),
        ),
    ),
    end=1_700_003_600.0,
    exit_code=1,
    signal=0,
    state="FAILED",
    hints=("near-limit", "neighbour-fault"),
    verdict="oom",
    notes=("sampler was restarted; means are of its last run",),
)
BARE = JobRecord(job_id=1, restarts=0, uid=1000, node="n1", start=1.0)


@pytest.mark.parametrize("given_record", [FULL, BARE])
def test_what_is_written_is_read_back(tmp_path: Path, given_record: JobRecord) -> None:
    write_job_record(tmp_path, given_record)
    path = tmp_path / record_name(given_record.job_id, given_record.restarts, given_record.node)
    assert read_job_record(path) == given_record
    assert path.read_text().count("\n") == 1


def test_every_field_is_a_key_of_the_file_and_what_nobody_knows_is_null() -> None:
    table = job_record_table(BARE)
    flat = {*JobRecord._fields, *Measurement._fields, "schema"} - {"measured"}
    assert set(table) == flat
    assert {table[key] for key in ("claim", "end", "exit_code", "state", "peak_mib", "verdict")} == {None}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b'{"schema":"gpumem-job/2","job_id":1,', "torn or no JSON"),
        (b"[" * 100_000, "torn or no JSON"),
        (b"[]", "no job record"),
        (b'{"schema":"other/1"}', "no job record"),
        (b'{"schema":"gpumem-job/3"}', "of another version"),
        (b" " * (1 << 20) + b"{}", "larger than 1 MiB"),
    ],
)
def test_what_is_no_record_is_refused_with_a_reason(data: bytes, why: str) -> None:
    with pytest.raises(BadRecordError, match=why):
        parse_job_record(data)


@pytest.mark.parametrize(
    "broken",
    [
        {"job_id": "1"},
        {"job_id": -1},
        {"uid": None},
        {"node": 3},
        {"node": ""},
        {"node": "../../etc/x"},
        {"start": float("nan")},
        {"start": 0},
        {"restarts": True},
        {"restarts": 10**30},
    ],
)
def test_a_record_that_does_not_name_its_run_is_refused(broken: Any) -> None:
    with pytest.raises(BadRecordError, match="without a usable"):
        parse_job_record(json.dumps(record(**broken)).encode())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it plays another user")
def test_a_record_that_a_user_wrote_is_refused_even_of_their_own_job(tmp_path: Path) -> None:
    path = tmp_path / "1.0.n1.json"
    path.write_text(json.dumps(record(uid=1001)))
    assert read_job_record(path).uid == 1001
    os.chown(path, 1001, 1001)
    with pytest.raises(OSError, match="belongs to user 1001"):
        read_job_record(path)


@pytest.mark.parametrize("key", ["job_id", "claim", "gpu", "peak_mib", "gpus", "verdict"])
def test_a_key_may_be_missing(key: str) -> None:
    table = record()
    table.pop(key, None)
    if key == "job_id":
        with pytest.raises(BadRecordError):
            job_record_from(table)
    else:
        assert job_record_from(table).job_id == 1


@given(st.dictionaries(st.sampled_from(sorted(job_record_table(FULL))), JSON, max_size=8))
def test_whatever_stands_in_a_file_its_record_can_be_written_and_read_again(changes: Any) -> None:
    try:
        found = job_record_from({**job_record_table(FULL), **changes})
    except BadRecordError:
        return
    assert parse_job_record(json.dumps(job_record_table(found)).encode()) == found


@given(JSON, JSON)
def test_a_gpus_figures_are_numbers_within_bounds_or_not_known(name: Any, value: Any) -> None:
    figures = {key: value for key in GpuFigures._fields if key not in ("name", "curve")}
    table = {"GPU-aa": {**figures, "name": name, "curve": name}}
    (found,) = job_record_from(record(gpu=table)).measured.gpu.values()
    numbers = [found.number, found.memory_mib, found.energy_j, found.sm_active_share]
    assert all(number is None or 0 <= number < 1e15 for number in numbers)
    assert isinstance(found.name, str)
    assert len(found.name) <= 64


def test_the_mode_of_an_earlier_record_gets_its_new_name() -> None:
    assert job_record_from({**job_record_table(FULL), "mode": "unfenced"}).mode == WITHOUT_MPS


def test_a_clock_that_was_set_back_makes_no_negative_run() -> None:
    assert job_record_from(record(start=100.0, end=50.0)).end == 100.0


@pytest.mark.parametrize("state", ["", "completed; rm", "X" * 40, 7, ["FAILED"], "ÜBER"])
def test_a_state_that_is_none_of_slurms_is_not_believed(state: Any) -> None:
    assert job_record_from(record(state=state, exit_code=3)).known_state == "FAILED"


@pytest.mark.parametrize(
    ("exit_code", "signal", "counted"), [(1, 0, True), (0, 6, True), (0, 0, False), (None, None, True)]
)
def test_an_out_of_memory_error_in_the_log_of_a_run_that_ended_well_does_not_count(
    exit_code: Optional[int], signal: Optional[int], counted: bool
) -> None:
    record = JobRecord(7, 0, 1, "n1", 1.0, end=2.0, exit_code=exit_code, signal=signal, verdict="oom")
    assert record.out_of_memory is counted
