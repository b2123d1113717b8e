"""jobstats' summary: the fields that its readers look for, and what else stands in the comment."""

from __future__ import annotations

import base64
import gzip
import json
import random
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.formats.jobstats import GpuUse, NodeUse, format_summary, read_summary

GPU = GpuUse("0", 3000, 12_288, 0.218)
NODE = NodeUse("n1", 4, 20.04, 8 << 30, 1 << 30, (GPU,))
WAS = "gpumem/1:was=--gres=gpu:1"


def as_reportseff_reads(comment: Optional[str]) -> Any:
    """All behind the mark goes to the decoder."""
    assert comment is not None
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
    table = as_reportseff_reads(format_summary((NODE._replace(gpus=(GPU._replace(busy=None),)),), 5))
    assert "gpu_utilization" not in table["nodes"]["n1"]


@given(st.integers(1, 10**6), st.floats(0, 1), st.text("abcdefgh0123456789", min_size=1, max_size=12))
def test_what_our_plug_in_had_noted_is_kept_within(run_s: int, busy: float, name: str) -> None:
    nodes = (NODE._replace(name=name, gpus=(GPU._replace(busy=busy),)),)
    alone, comment = format_summary(nodes, run_s), format_summary(nodes, run_s, WAS)
    assert comment is not None
    assert (
        as_reportseff_reads(comment) == {**as_reportseff_reads(alone), "gpumem": WAS} == read_summary(comment)
    )


@pytest.mark.parametrize("comment", ["it's mine", "JS1:None", f"{WAS} mine", "größer"])
def test_what_anybody_else_has_written_stays(comment: str) -> None:
    assert format_summary((NODE,), 5, comment) is None


def test_what_slurm_would_cut_off_is_not_written() -> None:
    dice = random.Random(1)
    nodes = tuple(NODE._replace(name=f"n{number}", cpu_s=dice.random() * 1e9) for number in range(9000))
    assert format_summary(nodes, 5) is None
