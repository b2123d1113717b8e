"""GPUs drawn as bars say at a glance who has how much of which."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.devcluster.demo import DemoJob, gpu_rows
from slurm_gpumem.devcluster.spec import default_nodes
from slurm_gpumem.slurm.state.running import Placement
from slurm_gpumem.terminal.bars import GpuRow, Segment, draw

ROWS = [
    GpuRow(
        "n1",
        0,
        40,
        (
            Segment("4711", "resnet50", 13, "13G"),
            Segment("4712", "bert", 9, "9G"),
            Segment("4714", "mnv3", 2, "2G"),
        ),
    ),
    GpuRow("n1", 1, 40),
    GpuRow("n2", 0, 40, (Segment("4713", "gpt2", 40, "40G"),)),
]


def test_each_gpu_is_a_line_of_the_same_width_and_a_node_is_named_once() -> None:
    lines = draw(ROWS, width=100)
    assert {len(line) for line in lines} == {100}
    assert [line[:7] for line in lines] == ["n1  gpu", "    gpu", "n2  gpu"]
    assert [line.split()[-1] for line in lines] == ["24/40", "0/40", "40/40"]


def test_labels_are_shortened_before_they_are_left_out() -> None:
    first = draw(ROWS, width=100)[0]
    assert " 4711 resnet50 13G " in first
    assert " 4712 bert 9G " in first
    assert "mnv3" not in first
    assert "░" in first


def test_a_full_gpu_fills_its_bar() -> None:
    bar = draw(ROWS, width=100)[2].split("▕")[1].split("▏")[0]
    assert bar.replace(" 4713 gpt2 40G ", "").strip("█") == ""


def test_a_terminal_without_utf8_gets_ascii() -> None:
    "\n".join(draw(ROWS, unicode=False)).encode("ascii")


def test_a_name_cannot_send_control_characters() -> None:
    row = GpuRow("n1", 0, 40, (Segment("1", "a\x1b[2Jb", 40, "40G"),))
    assert "\x1b" not in draw([row])[0]


@given(
    st.lists(st.integers(0, 60), max_size=8),
    st.integers(1, 100),
    st.integers(40, 140),
)
def test_whatever_is_on_a_gpu_the_line_keeps_its_width(units: list[int], capacity: int, width: int) -> None:
    row = GpuRow("n1", 0, capacity, tuple(Segment("1", "x", count, "1G") for count in units))
    empty = GpuRow("n1", 1, capacity)
    first, second = draw([row, empty], width=width)
    assert first.index("▕") == second.index("▕")
    assert first.index("▏") == second.index("▏")


def test_jobs_stand_in_the_order_of_their_submission_and_one_that_ended_is_not_drawn() -> None:
    jobs = [DemoJob(str(number), "x") for number in (1, 2, 3)]
    where = {"3": [Placement("n1", 1, "shard", 5)], "2": [Placement("n1", 1, "shard", 7)]}
    rows = gpu_rows(default_nodes(1), jobs, where)
    assert [[segment.job for segment in row.segments] for row in rows[:2]] == [[], ["2", "3"]]
