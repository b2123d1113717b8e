from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.config.kinds import parse_ladder
from slurm_gpumem.formats.comment import CommentRecord, End, parse_record
from slurm_gpumem.formats.verdicts import VERDICTS
from slurm_gpumem.recovery.job_comment import RUN_ENDED, end_message, parse_comment, with_end, with_record

RECORD = "gpumem/1:est=11000,req=12288,by=structural,shards=12,oom=requeue"


def test_the_users_text_and_the_record_stay() -> None:
    before = parse_comment(f"my own  words {RECORD}")
    end = End(0, "oom", "torch", 14210)
    comment = with_end(before, end)
    assert comment == f"my own  words {RECORD} gpumem-end/1:run=0,saw=oom,by=torch,need=14210"
    again = parse_comment(comment)
    assert (again.own, again.end, again.record) == (before.own, end, before.record)


def test_what_was_seen_becomes_part_of_the_record() -> None:
    before = parse_comment(f"{RECORD} gpumem-end/1:run=0,saw=oom,by=torch")
    assert before.record is not None
    comment = with_record(before, before.record._replace(shards=40, retry=1, was=12, why="oom", run=1))
    assert comment is not None
    assert parse_comment(comment).end is None
    assert parse_record(comment) == CommentRecord(
        estimate_mib=11000,
        request_mib=12288,
        estimator="structural",
        shards=40,
        on_oom="requeue",
        retry=1,
        was=12,
        why="oom",
        run=1,
    )


def test_a_comment_that_is_full_is_left_alone() -> None:
    assert with_end(parse_comment(f"{'x' * 940} {RECORD}"), End(0, "oom", "torch")) is None


@pytest.mark.parametrize(
    "word", ["run=x,saw=oom", "run=-1,saw=oom", "saw=oom", "run=0,saw=rain", "", "run=99999999999,saw=oom"]
)
def test_a_malformed_word_says_nothing(word: str) -> None:
    assert parse_comment(f"{RECORD} gpumem-end/1:{word}").end is None


@given(st.text(max_size=300))
def test_any_comment_can_be_read(text: str) -> None:
    comment = parse_comment(text)
    assert comment.record is None or (comment.record.retry or 0) >= 0


@pytest.mark.parametrize(
    ("record", "saw", "ladder", "said"),
    [
        (RECORD, "oom", ["whole-gpu"], "runs it again with a whole GPU"),
        (RECORD, "oom", ["+25%", "whole-gpu"], "runs it again with 25 % more"),
        (RECORD, "oom", ["need+25%", "whole-gpu"], "runs it again with more memory if limits allow it"),
        (RECORD, "oom", [], "at the last step of this site's recovery; it is not run again"),
        (RECORD + ",retry=1,whole=yes", "oom", ["whole-gpu"], "on a whole GPU; there is no larger one"),
        (
            RECORD.replace("requeue", "fail"),
            "oom",
            ["whole-gpu"],
            "it is not run again (on-oom=requeue would)",
        ),
        (RECORD, "neighbour", ["whole-gpu"], "runs it again as it was"),
        (RECORD + ",again=1", "neighbour", ["whole-gpu"], "it is not run again"),
        (RECORD, "host", ["whole-gpu"], "Ask for more with --mem"),
    ],
)
def test_the_line_in_the_log_says_what_follows(record: str, saw: str, ladder: list[str], said: str) -> None:
    end = End(0, saw, "torch")
    assert said in (end_message(end, parse_comment(record), parse_ladder(ladder), enabled=True) or "")


@pytest.mark.parametrize("name", VERDICTS)
def test_every_verdict_has_a_line_of_its_own(name: str) -> None:
    line = end_message(End(0, name, "x"), parse_comment(RECORD), (), enabled=True)
    assert line is not None
    assert line.startswith(f"{RUN_ENDED} {VERDICTS[name].ended}")
    assert line.endswith(".")
