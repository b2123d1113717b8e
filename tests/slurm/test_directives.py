"""#GPUMEM lines: read where #SBATCH lines are, forgiving what they do not understand."""

from __future__ import annotations

from typing import List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.config.schema import JOB_KEYS
from slurm_gpumem.slurm.submit.script import BatchScript, Directives, read_directives


def read(text: str) -> Directives:
    return read_directives(BatchScript("job.sh", "job.sh", text.encode()), JOB_KEYS)


def test_several_keys_may_share_a_line_and_values_may_be_quoted() -> None:
    said = read("#!/bin/sh\n#GPUMEM model='my model.txt' batch-size=128\n#GPUMEM optimizer=sgd # why\n")
    assert [(d.key, d.value, d.line) for d in said.found] == [
        ("model", "my model.txt", 2),
        ("batch-size", "128", 2),
        ("optimizer", "sgd", 3),
    ]
    assert said.warnings == ()


def test_a_line_behind_the_first_command_is_pointed_out_once() -> None:
    said = read("#!/bin/sh\n#GPUMEM model=a.txt\ntrue\n#GPUMEMO x\n#GPUMEM gpu=x\n#GPUMEM gpu=y\n")
    assert [found.key for found in said.found] == ["model"]
    assert said.warnings == ("job.sh, line 5: #GPUMEM stands behind the first command and is not read",)


def test_lines_behind_the_first_command_do_not_count() -> None:
    assert read("#!/bin/sh\ntrue\n#GPUMEM mem=12G\n").found == ()


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        (
            "#GPUMEM batchsize=8",
            "job.sh, line 2: unknown key 'batchsize' (did you mean 'batch-size'?); ignored",
        ),
        ("#GPUMEM batch-size", "job.sh, line 2: 'batch-size' is not key=value; ignored"),
        ("#GPUMEM model=", "job.sh, line 2: 'model=' is not key=value; ignored"),
        ("#GPUMEM model='open", 'job.sh, line 2: No closing quotation in "model=\'open"; line ignored'),
    ],
)
def test_what_is_not_understood_is_a_warning_with_its_line(line: str, warning: str) -> None:
    said = read(f"#!/bin/sh\n{line}\n#GPUMEM mem=12G\n")
    assert list(said.warnings) == [warning]
    assert [(d.key, d.value) for d in said.found] == [("mem", "12G")]


SLIPS = ["# GPUMEM mem=12G", "#gpumem mem=12G", "#GPUMEM: mem=12G", "  #GPUMEM mem=12G", "#GPU_MEM mem=12G"]
"""The plug-in is tested with the same ones."""


@pytest.mark.parametrize("line", SLIPS)
def test_a_comment_that_was_meant_as_a_directive_is_pointed_out(line: str) -> None:
    said = read(f"#!/bin/sh\n{line}\ntrue\n")
    assert said.found == ()
    assert said.warnings == ("job.sh, line 2: is ignored; write it like this: #GPUMEM mem=12G",)


@pytest.mark.parametrize("line", ["##GPUMEM mem=12G", "# gpumem estimates this job", "# GPU memory: 12G"])
def test_other_comments_draw_no_warning(line: str) -> None:
    assert read(f"#!/bin/sh\n{line}\ntrue\n") == Directives((), ())


def test_a_longer_word_is_no_directive() -> None:
    assert read("#!/bin/sh\n#GPUMEMORY model=x\n") == Directives((), ())


@given(st.lists(st.text(max_size=40), max_size=5))
def test_no_text_breaks_the_reading(lines: List[str]) -> None:
    read("#!/bin/sh\n" + "\n".join("#GPUMEM " + line for line in lines))


def test_a_memory_line_of_an_earlier_version_is_named_once_and_ignored() -> None:
    line = "#GPUMEM batch-size=128 memory-line=1/ac00cd478b3c4d5e/trace/adam.fp32/both.100.100/128/32,3576,40"
    found = read(f"#!/bin/bash\n{line}\n{line}\n")
    assert [(one.key, one.value) for one in found.found] == [("batch-size", "128")] * 2
    assert found.old_line
    assert found.warnings == (
        "job.sh, line 2: memory-line= is ignored; write #GPUMEM model=summary.txt (with gpusbatch) or "
        "#GPUMEM mem=12G instead",
    )
    assert not read("#!/bin/bash\n#GPUMEM mem=12G\n").old_line


@pytest.mark.parametrize(
    ("written", "meant"),
    [("memory", "mem"), ("gpu-mem", "mem"), ("GPU_MEM", "mem"), ("vram", "mem"), ("bs", "batch-size")],
)
def test_a_key_that_means_a_known_one_is_answered_with_it(written: str, meant: str) -> None:
    script = BatchScript("job.sh", "job.sh", f"#!/bin/bash\n#GPUMEM {written}=12G\n".encode())
    directives = read_directives(script, ("mem", "batch-size"))
    assert directives.found == ()
    assert directives.warnings == (
        f"job.sh, line 2: unknown key {written!r} (did you mean {meant!r}?); ignored",
    )


@pytest.mark.parametrize("line", ["mem = 12G", "mem =12G", "mem= 12G"])
def test_blanks_around_the_equals_sign_are_said_once_with_the_right_line(line: str) -> None:
    script = BatchScript("job.sh", "job.sh", f"#!/bin/bash\n#GPUMEM {line}\n".encode())
    directives = read_directives(script, ("mem",))
    assert directives.found == ()
    [warning] = directives.warnings
    assert warning.endswith("like #GPUMEM mem=12G")
