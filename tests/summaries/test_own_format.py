"""Our own summary: what is written is read again, and what is not ours is refused with a reason."""

from __future__ import annotations

import json
from typing import Any, Dict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.summaries.parsers.own import to_json
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.trace_types import (
    Convolution,
    Kernel,
    Phase,
    Reduction,
    Site,
    Trace,
    TracedJob,
    evaluate,
    scale,
)
from slurm_gpumem.summaries.types import Layer, ModelSummary

CONVOLUTION = Convolution("forward", "fp32", (0, 1), 3, 8, (32, 32), (32, 32), (3, 3), (1, 1), (1, 1), (1, 1))
TRACE = Trace(
    job=TracedJob(batch=4, optimizer="adam", torch="2.13.0"),
    way="meta",
    sites=(
        Site((1024,), "parameter", "conv", "weights"),
        Site((0, 4096), "aten::convolution", "conv", "activations"),
        Site((), "aten::convolution", "conv", "workspace", CONVOLUTION),
        Site((), "aten::sum", "conv", "workspace", None, Reduction((0, 100), (8,))),
        Site((), "cublas", "", "workspace"),
    ),
    events=(0, 1, 2, -1, 3, -1, 4, -4),
    phases=(Phase(0, "setup", 0), Phase(1, "forward", 1), Phase(4, "backward", 1)),
    uses_conv=True,
    kernels=(
        Kernel("conv", "forward", "fp32", ((0, 1024), (8,), (27,), (1,), (9,), (1,), (0,)), (864, 45056)),
        Kernel("view", "backward", "fp32", (), (0,), 3),
        Kernel("foreach", "optimizer", "fp32", ((2,), (224,)), (2688,), 2),
    ),
)
SUMMARY = ModelSummary(
    format="gpumem",
    layers=(Layer("Conv2d", outputs=((4, 8, 32, 32),), inputs=((4, 3, 32, 32),), params=224, name="conv"),),
    name="Tiny",
    batch=4,
    input_shapes=((4, 3, 32, 32),),
    total_params=224,
    trainable_params=224,
    trace=TRACE,
)


def test_what_is_written_is_read_again() -> None:
    assert read_summary(to_json(SUMMARY)) == SUMMARY


def test_a_summary_keeps_that_the_script_came_to_its_end() -> None:
    ended = SUMMARY._replace(trace=TRACE._replace(finished=True))
    assert read_summary(to_json(ended)) == ended


def test_a_summary_keeps_how_much_was_seen_of_a_script_whose_end_was_not() -> None:
    cut = SUMMARY._replace(trace=TRACE._replace(unfinished="2 of 30 epochs"))
    assert read_summary(to_json(cut)) == cut


def test_a_summary_of_an_older_version_has_no_kernels() -> None:
    document = json.loads(to_json(SUMMARY))
    del document["trace"]["kernels"]
    read = read_summary(json.dumps(document) + "\n")
    assert read.trace is not None
    assert read.trace.kernels == ()


@pytest.mark.parametrize(
    "row", [[0, 1, 0, 1, [8], [1]], [99, 1, 0, 1, [8], [1], [1]], [6, 1, 0, -1, [8], [1], [1]], [6], "x"]
)
def test_a_kernel_that_cannot_be_is_refused(row: Any) -> None:
    document = json.loads(to_json(SUMMARY))
    document["trace"]["kernels"].append(row)
    with pytest.raises(SummaryError, match="gpumem summarize"):
        read_summary(json.dumps(document) + "\n")


def test_sizes_are_polynomials_of_the_batch() -> None:
    assert evaluate((10, 0, 3), 4) == 58
    assert scale(TRACE, 8).sites[1].bytes_at(8) == 8 * 4096
    assert scale(TRACE, 8).job.batch == 8


def test_releases_name_the_block_that_was_allocated_so_many_allocations_ago() -> None:
    released = [block for _, block, site in TRACE.allocations() if site is None]
    assert released == [2, 3, 1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"events": [0, -2]}, "event 1"),
        ({"events": [0, -1, -1]}, "releases a block twice"),
        ({"events": [99]}, "event 0"),
        ({"way": "magic"}, "way is 'magic'"),
        ({"phases": []}, "no phase"),
        ({"emptied": [1, 1]}, "emptied is not"),
        ({"sites": [[[1], 0]]}, "four to six"),
        ({"job": {"batch": 0}}, "batch is 0"),
        ({"job": {"batch": 4, "cores": 1}}, "unknown field"),
        ({"job": 3}, "TracedJob is not an object"),
        ({"job": {"batch": 4, "checkpointing": 1}}, "checkpointing is not true or false"),
        ({"phases": [[0, "setup", 0], [9, "forward", 1]]}, "phase 'forward' begins at event 9"),
        ({"sites": [[[1, 2, 3, 4, 5], 0, 0, 0]]}, "a size is no polynomial of whole numbers"),
        ({"sites": [[[], 0, 0, 0, [[1], [2], 3]]]}, "a sum's vector is not 1, 2, 4 or 8"),
        ({"sites": [[[], 0, 0, 0, [[1], [2], 4, 7]]]}, "a sum's number has not 4, 8, 16 or 32 bytes"),
    ],
)
def test_a_damaged_trace_is_refused_with_the_reason(change: Dict[str, Any], said: str) -> None:
    document = json.loads(to_json(SUMMARY))
    document["trace"].update(change)
    with pytest.raises(SummaryError, match=said):
        read_summary(json.dumps(document) + "\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"call": "sideways"}, "sideways"),
        ({"dtype": "int8"}, "int8"),
        ({"groups": 2}, "groups do not divide"),
        ({"outputs": 0}, "a convolution's outputs is 0"),
        ({"size": (0, 32)}, "below 1"),
        ({"kernel": (3,)}, "one, two or three dimensions"),
        ({"padding": ()}, "one, two or three dimensions"),
    ],
)
def test_a_convolution_that_cannot_be_is_refused(change: Dict[str, Any], said: str) -> None:
    workspace = TRACE.sites[2]._replace(convolution=CONVOLUTION._replace(**change))
    sites = (*TRACE.sites[:2], workspace, *TRACE.sites[3:])
    with pytest.raises(SummaryError, match=said):
        read_summary(to_json(SUMMARY._replace(trace=TRACE._replace(sites=sites))))


def test_a_later_version_is_refused_by_its_name() -> None:
    text = to_json(SUMMARY).replace("gpumem-summary/1", "gpumem-summary/9")
    with pytest.raises(SummaryError, match="gpumem-summary/9"):
        read_summary(text)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_change_of_one_value_brings_it_down(data: st.DataObject) -> None:
    document = json.loads(to_json(SUMMARY))
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(st.sampled_from([None, -1, 1.5, "x", [], {}, True, 10**30, [[]], "\x1b[31m"]))
    try:
        read_summary(json.dumps(document) + "\n")
    except SummaryError:
        pass
