from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.accounting import schema
from slurm_gpumem.accounting.index import JobTable
from slurm_gpumem.accounting.rows import row_of, short_gpu_name
from slurm_gpumem.formats.job_record import BadRecordError, job_record_from, parse_job_record
from tests.accounting.job_records import record
from tests.formats.any_json import JSON


def run(**changes: Any) -> Any:
    return row_of(parse_job_record(json.dumps(record(**changes)).encode()))


def test_a_record_becomes_a_row() -> None:
    row = run(met=[4, 5])
    assert (row.job_id, row.user, row.model, row.gpu, row.gpu_mib) == (1, "usr1", "resnet50", "a100", 40_960)
    assert (row.sharing, row.own_peak_mib, row.used_s, row.own_state) == (
        "shared",
        11_600,
        3600.0,
        "COMPLETED",
    )
    assert (row.fingerprint, row.batch, row.optimizer, row.precision, row.variant) == (
        "0123456789abcdef",
        128,
        "adam",
        "fp32",
        "",
    )
    assert (row.met, row.exit_code, row.samples) == ((4, 5), 0, 3600)


def test_a_row_is_read_as_it_was_written(tmp_path: Path) -> None:
    with closing(schema.create(tmp_path / "index")) as index:
        table = JobTable(index)
        written = run(met=[4, 5], hints=["near-limit"], notes=["one", "two"])
        table.put([written])
        folded = {"state": "COMPLETED", "first_start": written.start, "peak_mib": written.own_peak_mib}
        assert list(JobTable(index).rows("1")) == [written._replace(id=1, **folded)]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 1e300, "12", True, [1]])
def test_a_number_that_is_none_is_not_known(value: Any) -> None:
    assert run(peak_mib=value).own_peak_mib is None


@given(st.dictionaries(st.sampled_from(sorted(record())), JSON, max_size=6))
def test_whatever_stands_in_a_record_it_is_a_row_or_refused(changes: Any) -> None:
    try:
        row = row_of(job_record_from({**record(), **changes}))
    except BadRecordError:
        return
    texts = [value for value in row if isinstance(value, str)]
    assert all("\x00" not in text and text.encode() is not None for text in texts)
    assert row.end is None or row.end >= row.start


@pytest.mark.parametrize(
    ("changes", "state", "oom"),
    [
        ({"end": None, "state": None}, "RUNNING", False),
        ({"state": None}, "COMPLETED", False),
        ({"state": None, "exit_code": 1}, "FAILED", False),
        ({"state": None, "exit_code": 3, "hints": ["near-limit"]}, "FAILED", False),
        ({"state": None, "exit_code": 1, "verdict": "oom"}, "FAILED", True),
        ({"state": "REQUEUED", "exit_code": 0}, "REQUEUED", False),
        ({"state": None, "exit_code": 1, "hints": ["near-limit"], "verdict": "host"}, "FAILED", False),
        ({"state": None, "exit_code": None}, "UNKNOWN", False),
    ],
)
def test_how_a_run_ended(changes: Any, state: str, oom: bool) -> None:
    row = run(**changes)
    assert (row.own_state, bool(row.oom)) == (state, oom)


def test_an_observed_job_is_told_apart_and_says_what_sharing_would_have_taken() -> None:
    row = run(shards=None, limit_mib=None, claim={"shards": "0", "mode": "observe"})
    assert row.sharing == "observed"
    assert row.would_s == pytest.approx(3600 * 13 / 40)
    assert run(shards=None, claim={"shards": "0"}).would_s is None


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx 4090"),
        ("NVIDIA RTX A6000", "rtx a6000"),
        ("Tesla T4", "t4"),
        ("NVIDIA", ""),
        ("stand-in", ""),
    ],
)
def test_gpus_have_short_names(name: str, short: str) -> None:
    assert short_gpu_name(name) == short
