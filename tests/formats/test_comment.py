"""The record in a job's comment: one word, appended, never in the user's way."""

from __future__ import annotations

import re
from typing import List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.formats.comment import (
    MAX_COMMENT_BYTES,
    CommentRecord,
    append_record,
    format_record,
    parse_record,
    parse_word,
)

WORD = re.compile(r"gpumem/1:([a-z-]+=[A-Za-z0-9._+-]+(,[a-z-]+=[A-Za-z0-9._+-]+)*)?")
NUMBER, TEXT = (
    st.none() | st.integers(0, 999_999_999),
    st.from_regex(r"([a-z0-9][a-z0-9.+_-]{0,20}[a-z0-9])?", fullmatch=True),
)
RECORDS = st.fixed_dictionaries(
    {
        name: NUMBER if CommentRecord._field_defaults[name] is None else TEXT
        for name in CommentRecord._fields
        if name != "other"
    }
).map(lambda values: CommentRecord(**values))


def test_it_is_one_word_in_the_order_of_its_fields() -> None:
    record = CommentRecord(on_oom="requeue", estimate_mib=12045, request_mib=13312, estimator="structural")
    assert format_record(record) == "gpumem/1:est=12045,req=13312,by=structural,oom=requeue"


@given(st.text(max_size=20), st.text(max_size=20), st.integers())
def test_whatever_the_values_are_the_format_holds(model: str, gpu: str, batch: int) -> None:
    assert WORD.fullmatch(format_record(CommentRecord(model=model, gpu=gpu, batch=batch)))


@given(RECORDS)
def test_what_is_written_is_read_back(record: CommentRecord) -> None:
    assert parse_record(f"mine {format_record(record)}") == record
    assert parse_word(format_record(record)) == record


@given(st.text(max_size=60))
def test_the_users_comment_stays_as_it_is(comment: str) -> None:
    joined = append_record(comment, "gpumem/1:req=5")
    assert joined is not None
    assert joined == (f"{comment} gpumem/1:req=5" if comment else "gpumem/1:req=5")
    assert parse_record(joined) == CommentRecord(request_mib=5)


def test_a_comment_without_a_record_has_none() -> None:
    assert parse_record("my gpumem job") is None
    assert parse_record("") is None


def test_the_last_record_counts_and_unknown_keys_are_kept() -> None:
    record = parse_record("gpumem/1:req=1 again gpumem/1:req=2,new-key=x,odd,BAD=1")
    assert record == CommentRecord(request_mib=2, other=(("new-key", "x"),))
    assert format_record(record) == "gpumem/1:req=2,new-key=x"


def test_a_record_of_a_memory_line_which_earlier_versions_wrote_is_read() -> None:
    text = (
        "gpumem/1:est=14091,req=19485,by=corrected,via=line,gpu=a100,batch=128,fp=ac00cd478b3c4d5e,shards=20"
    )
    record = parse_record(text)
    assert record is not None
    assert (record.estimate_mib, record.estimator, record.gpu, record.shards) == (
        14091,
        "corrected",
        "a100",
        20,
    )
    assert parse_record(format_record(record)) == record


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "²", "٣", "1234567890", "9" * 5000])
def test_a_number_that_is_none_is_not_known(text: str) -> None:
    assert parse_record(f"gpumem/1:est=5,est={text}") == CommentRecord()


@given(st.lists(st.tuples(st.sampled_from(["est", "batch", "model", "why", "x-y", "?"]), st.text())))
def test_any_fields_make_a_record_of_short_clean_words(fields: List[Tuple[str, str]]) -> None:
    record = parse_word("gpumem/1:" + ",".join(f"{key}={value}" for key, value in fields))
    assert record is not None
    words = [record.model, record.why, *(text for _, text in record.other)]
    assert all(len(word) <= 64 and not any(letter < " " for letter in word) for word in words)


def test_the_parts_of_an_estimate_have_names() -> None:
    sizes = CommentRecord(parts="97+97+195+9948+310+495+758").part_sizes
    assert (sizes["weights"], sizes["activations"], sizes["context"]) == (97, 9948, 758)
    assert CommentRecord(parts="97+97").part_sizes == CommentRecord(parts="9+x").part_sizes == {}


def test_a_comment_that_slurm_would_refuse_is_not_made() -> None:
    record = "gpumem/1:req=5"
    room = MAX_COMMENT_BYTES - len(record) - 1
    assert append_record("x" * room, record) is not None
    assert append_record("x" * (room + 1), record) is None
    assert append_record("ü" * (room // 2 + 1), record) is None
