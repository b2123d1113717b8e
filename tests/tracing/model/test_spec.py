"""What the options say, as values."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.errors import GpumemError, TargetError
from slurm_gpumem.tracing.model.spec import (
    BATCH,
    FILE,
    HUGGING_FACE,
    MODULE,
    TIMM,
    InputSpec,
    TraceRequest,
    parse_arguments,
    parse_input,
    parse_target,
    torch_dtype,
)


@pytest.mark.parametrize(
    ("text", "sizes", "name", "dtype"),
    [
        ("3,224,224", (BATCH, 3, 224, 224), "", ""),
        ("3x224x224", (BATCH, 3, 224, 224), "", ""),
        ("(3, 224, 224)", (BATCH, 3, 224, 224), "", ""),
        ("input_ids=128:int64", (BATCH, 128), "input_ids", "int64"),
        ("x=3,32,32:fp16", (BATCH, 3, 32, 32), "x", "float16"),
        ("35,B,512", (35, BATCH, 512), "", ""),
        ("t=scalar:long", (BATCH,), "t", "int64"),
    ],
)
def test_an_input_is_a_sample_with_the_batch_before_it_or_where_b_stands(
    text: str, sizes: tuple, name: str, dtype: str
) -> None:
    assert parse_input(text) == InputSpec(sizes, name, dtype)


@pytest.mark.parametrize("text", ["", "3,x,224", "0,3", "3,-2", "B,3,B", "1.5,2", "a b=3", "3:int7", "x==3"])
def test_what_is_no_shape_is_refused_with_the_word_that_is_wrong(text: str) -> None:
    with pytest.raises(GpumemError) as caught:
        parse_input(text)
    assert "input" in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_an_input_or_an_error_of_ours(text: str) -> None:
    try:
        assert BATCH in parse_input(text).sizes
    except GpumemError:
        pass


def test_the_batch_takes_its_place_in_the_shape() -> None:
    assert parse_input("35,B,512").shape(8) == (35, 8, 512)


def test_targets_are_files_modules_and_names_of_libraries(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    assert parse_target(f"{script}:build").kind == FILE
    assert parse_target(f"{script}:build").attribute == "build"
    assert parse_target("package.module:Net.build").kind == MODULE
    assert parse_target("timm:resnet50").kind == TIMM
    assert parse_target("hf:org/name-7b").place == "org/name-7b"
    (tmp_path / "config.json").write_text("{}")
    assert parse_target(str(tmp_path)).kind == HUGGING_FACE


@pytest.mark.parametrize(
    "text", ["nowhere.py:build", "train.py:build(10)", "hf:", "some words", "a/b/c", "x:1a"]
)
def test_a_target_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(TargetError):
        parse_target(text)


def test_a_label_shows_no_folders(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    assert parse_target(f"{script}:build").label == "train.py:build"


def test_arguments_are_read_as_python_would() -> None:
    given = parse_arguments(["n=10", "p=0.5", "sizes=[1, 2]", "name=small", "flag=true", "nothing=None"])
    assert given == {"n": 10, "p": 0.5, "sizes": [1, 2], "name": "small", "flag": True, "nothing": None}
    for wrong in ("n", "=3", "a b=3", "x={1,2}"):
        with pytest.raises(TargetError):
            parse_arguments([wrong])


def test_a_request_comes_through_json_as_it_was() -> None:
    request = TraceRequest(
        target=parse_target("timm:resnet50", {"num_classes": 10}),
        batch_size=4,
        inputs=(parse_input("x=3,32,32:fp16"),),
        loss_callable=parse_target("losses:focal"),
        target_input=parse_input("10"),
    )
    assert TraceRequest.from_json(request.to_json()) == request


def test_types_have_several_names() -> None:
    assert {torch_dtype(name) for name in ("long", "int64", "torch.int64", "INT64")} == {"int64"}
