"""jobstats' summary: the fields that its readers look for, and what else stands in the comment."""

from __future__ import annotations

import base64
import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.formats.jobstats import (
    MOST_BYTES,
    GpuUse,
    NodeUse,
    format_summary,
    read_summary,
    with_summary,
)

GPU = GpuUse("0", 3000, 12_288, 0.218)
NODE = NodeUse("n1", 4, 20.04, 8 << 30, 1 << 30, (GPU,))
WAS = "gpumem/1:was=--gres=gpu:1"


def as_reportseff_reads(comment: str) -> object:
    """All behind the mark goes to the decoder, with whatever follows."""
    return json.loads(gzip.decompress(base64.b64decode(comment[4:])))


def test_a_summary_has_the_fields_that_jobstats_documents() -> None:
    assert as_reportseff_reads(format_summary((NODE,), 5)) == {
        "nodes": {
            "n1": {
                "total_memory": 8 << 30,
                "used_memory": 1 << 30,
                "total_time": 20.0,
                "cpus": 4,
                "gpu_total_memory": {"0": 12_288 << 20},
                "gpu_used_memory": {"0": 3000 << 20},
                "gpu_utilization": {"0": 21.8},
            }
        },
        "total_time": 5,
        "gpus": 1,
    }


def test_an_activity_that_nobody_knows_is_left_out() -> None:
    table = read_summary(format_summary((NODE._replace(gpus=(GPU._replace(busy=None),)),), 5))
    assert table is not None
    assert "gpu_utilization" not in table["nodes"]["n1"]


@given(st.integers(1, 10**6), st.floats(0, 1), st.text("abcdefgh0123456789", min_size=1, max_size=12))
def test_what_stood_there_stays_and_disturbs_no_reader(run_s: int, busy: float, name: str) -> None:
    summary = format_summary((NODE._replace(name=name, gpus=(GPU._replace(busy=busy),)),), run_s)
    comment = with_summary(WAS, summary)
    assert comment == f"{summary} {WAS}"
    assert as_reportseff_reads(comment) == as_reportseff_reads(summary) == read_summary(comment)


@pytest.mark.parametrize("comment", ["it's mine", 'said "so"', "two\nlines", "größer", "x" * MOST_BYTES])
def test_a_comment_that_would_not_stay_as_it_is_gets_no_summary(comment: str) -> None:
    assert with_summary(comment, format_summary((NODE,), 5)) is None


def test_without_another_comment_it_stands_alone() -> None:
    assert with_summary("", "JS1:x=") == "JS1:x="
