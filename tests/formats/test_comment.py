"""The record in a job's comment: one word, appended, never in the user's way."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.formats.comment import MAX_COMMENT_BYTES, append_record, format_record, parse_record

WORD = re.compile(r"gpumem/1:([a-z-]+=[A-Za-z0-9._+-]+(,[a-z-]+=[A-Za-z0-9._+-]+)*)?")


def test_it_is_one_word_in_the_order_given() -> None:
    record = format_record({"est": 12045, "req": 13312, "by": "structural", "gpu": None, "oom": "requeue"})
    assert record == "gpumem/1:est=12045,req=13312,by=structural,oom=requeue"


@given(st.dictionaries(st.sampled_from(["est", "by", "gpu", "on-oom"]), st.text(max_size=20)))
def test_whatever_the_values_are_the_format_holds(values: dict[str, str]) -> None:
    assert WORD.fullmatch(format_record(values))


@given(st.text(max_size=60))
def test_the_users_comment_stays_as_it_is(comment: str) -> None:
    joined = append_record(comment, "gpumem/1:req=5")
    assert joined is not None
    assert joined == (f"{comment} gpumem/1:req=5" if comment else "gpumem/1:req=5")
    assert parse_record(joined) == {"req": "5"}


def test_a_comment_without_a_record_has_none() -> None:
    assert parse_record("my gpumem job") is None
    assert parse_record("") is None


def test_the_last_record_counts_and_unknown_keys_do_no_harm() -> None:
    assert parse_record("gpumem/1:req=1 again gpumem/1:req=2,new-key=x,odd") == {"req": "2", "new-key": "x"}


def test_a_comment_that_slurm_would_refuse_is_not_made() -> None:
    record = "gpumem/1:req=5"
    room = MAX_COMMENT_BYTES - len(record) - 1
    assert append_record("x" * room, record) is not None
    assert append_record("x" * (room + 1), record) is None
    assert append_record("ü" * (room // 2 + 1), record) is None
