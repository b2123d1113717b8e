"""sacct -P as versions of Slurm write it."""

from __future__ import annotations

from typing import Dict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.errors import UsageError
from slurm_gpumem.slurm.state.history import (
    ABSURD,
    AHEAD,
    CUT_OFF,
    FIELDS,
    NO_TIME,
    NOT_ENDED,
    UNREADABLE,
    _nodes,
    ask_history,
    history_command,
    parse_history,
)
from tests.support.fake_slurm import FakeSlurm

HEADER = "|".join(FIELDS)


def _row(job_id: str = "7", **values: str) -> str:
    usual = {
        "JobIDRaw": job_id, "User": "anna", "Partition": "gpu",
        "Submit": "2026-11-01T08:00:00", "Eligible": "2026-11-01T08:00:00", "Start": "2026-11-01T08:10:00",
        "End": "2026-11-01T09:10:00", "TimelimitRaw": "120", "NodeList": "n01",
        "AllocTRES": "billing=8,cpu=8,gres/gpu:a100=1,gres/gpu=1,mem=64G,node=1",
    }  # fmt: skip
    return "|".join({**usual, **values}.get(name, "") for name in FIELDS)


def test_a_job_and_the_gpu_use_of_its_steps() -> None:
    usage = {"TRESUsageInMax": "cpu=00:00:10,gres/gpumem=11500M,gres/gpuutil=97,mem=1G",
             "TRESUsageInAve": "cpu=00:00:10,gres/gpumem=9000M,gres/gpuutil=64,mem=1G"}  # fmt: skip
    small = {"TRESUsageInMax": "gres/gpumem=0,gres/gpuutil=0", "TRESUsageInAve": "gres/gpuutil=0"}
    lines = [HEADER, _row(), _row("7.batch", **usage), _row("7.extern", **small)]
    (job,) = parse_history(lines, "x").jobs
    assert (job.job_id, job.user, job.gpus, job.gpu_type, job.nodes) == ("7", "anna", 1, "a100", ("n01",))
    assert (job.start - job.submit, job.end - job.start, job.limit_s) == (600, 3600, 7200)
    assert job.gpu_mib == pytest.approx(11_500)
    assert job.gpu_util == pytest.approx(0.64)


@pytest.mark.parametrize(
    ("tres", "gpus", "kind"),
    [
        ("billing=8,cpu=8,gres/gpu=4,mem=1G,node=1", 4, None),
        ("cpu=8,gres/gpu:h100=2,mem=1G", 2, "h100"),
        ("cpu=8,gres/shard=12,mem=1G", 1, None),
        ("cpu=8,gres/gpu:3090=1,gres/gpu=1", 1, "3090"),
    ],
)
def test_gpus_of_a_job_as_its_tres_say(tres: str, gpus: int, kind: str) -> None:
    (job,) = parse_history([HEADER, _row(AllocTRES=tres)], "x").jobs
    assert (job.gpus, job.gpu_type) == (gpus, kind)


def test_a_job_with_shards_on_two_nodes_had_two_gpus() -> None:
    (job,) = parse_history(
        [HEADER, _row(AllocTRES="cpu=8,gres/shard=24,node=2", NodeList="n[01-02]")], "x"
    ).jobs
    assert (job.gpus, job.nodes) == (2, ("n01", "n02"))


def test_jobs_without_gpus_or_that_never_ran_are_left_out() -> None:
    lines = [
        HEADER,
        _row("1", AllocTRES="cpu=8,mem=1G"),
        _row("2", Start="Unknown"),
        _row("3", Start="None", End="Unknown"),
        _row("4", End="Unknown"),
        _row("5", AllocTRES=""),
        "garbage",
        "",
    ]
    found = parse_history(lines, "x")
    assert found.jobs == ()
    assert found.left_out == {NOT_ENDED: 3, CUT_OFF: 1}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"Start": "01/11/2026 08:10"}, UNREADABLE),
        ({"End": "2026-11-01T08:10:00"}, NO_TIME),
        ({"End": "2026-11-01T07:00:00"}, NO_TIME),
        ({"End": "9999-12-31T23:00:00"}, AHEAD),
        ({"AllocTRES": "cpu=1,gres/gpu=999999999"}, ABSURD),
    ],
)
def test_a_row_that_cannot_be_played_is_counted_by_its_reason(values: Dict[str, str], reason: str) -> None:
    found = parse_history([HEADER, _row("1"), _row("2", **values)], "x")
    assert [job.job_id for job in found.jobs] == ["1"]
    assert found.left_out == {reason: 1}


def test_an_empty_line_is_no_row() -> None:
    assert parse_history([HEADER, _row(), "", "\n"], "x").left_out == {}


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_the_delimiter_is_found_by_the_header(delimiter: str) -> None:
    lines = [line.replace("|", delimiter) + "\r\n" for line in (HEADER, _row())]
    (job,) = parse_history(lines, "x").jobs
    assert (job.gpus, job.nodes) == (1, ("n01",))


def test_every_run_of_a_requeued_job_counts_and_times_may_be_numbers() -> None:
    again = _row(Start="1793520000", End="1793523600", Submit="1793510000", Eligible="1793515000")
    jobs = parse_history([HEADER, _row(), again], "x").jobs
    assert len(jobs) == 2
    assert jobs[0].start - jobs[0].submit == 5000


def test_a_comment_with_the_delimiter_does_not_shift_columns() -> None:
    (job,) = parse_history([HEADER, _row(AdminComment="JS1:abc|x|y")], "x").jobs
    assert job.comment == "JS1:abc|x|y"


def test_any_order_of_columns_will_do_and_a_missing_one_is_named() -> None:
    lines = [
        "JobID|AllocTRES|Start|End|Submit|",
        "3|gres/gpu=1|2026-11-01T08:10:00|2026-11-01T09:10:00|2026-11-01T08:00:00|",
    ]
    (job,) = parse_history(lines, "x").jobs
    assert job.gpus == 1
    with pytest.raises(UsageError, match=r"file\.txt: .*has no Submit, AllocTRES") as caught:
        parse_history(["JobID|Start|End"], "file.txt")
    assert "sacct -a -P -S now-30days --format=" in str(caught.value)


def test_the_command_asks_for_everybody_and_its_answer_is_read() -> None:
    slurm = FakeSlurm({" ".join(history_command("now-7days")): "\n".join([HEADER, _row()]) + "\n"})
    assert [job.job_id for job in ask_history("now-7days", slurm).jobs] == ["7"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("gpu[08-10,12],login1", ["gpu08", "gpu09", "gpu10", "gpu12", "login1"]),
        ("None assigned", []),
        ("", []),
        ("n[1-9999999]", []),
    ],
)
def test_node_lists_are_expanded(text: str, names: list[str]) -> None:
    assert list(_nodes(text)) == names


@given(st.lists(st.text(alphabet="|0123456789=,./abgpu\\x", max_size=120), max_size=8))
def test_whatever_stands_in_a_file_it_is_jobs_or_nothing(lines: list[str]) -> None:
    assert all(job.gpus > 0 for job in parse_history([HEADER, *lines], "x").jobs)
