"""Command lines by getopt's rules: ours, sbatch's, values, the script and its arguments."""

from __future__ import annotations

import subprocess
from typing import Any, List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.cli.gpusbatch import OUR_OPTIONS
from slurm_gpumem.slurm.submit.sbatch_options import (
    NO_VALUE,
    OPTIONAL,
    REQUIRED,
    CommandLine,
    OptionSpec,
    options_from_help,
    read_command_line,
    sbatch_table,
)

TABLE = sbatch_table(OUR_OPTIONS)


def read(*argv: str) -> CommandLine:
    return read_command_line(argv, TABLE)


def found(*argv: str) -> List[Tuple[str, Any]]:
    return [(option.name, option.value) for option in read(*argv).options]


def test_an_option_that_needs_a_value_takes_the_next_word_whatever_it_looks_like() -> None:
    line = read("-J", "--model", "--comment", "--dry-run", "job.sh")
    assert [(o.name, o.value, o.ours) for o in line.options] == [
        ("job-name", "--model", False),
        ("comment", "--dry-run", False),
    ]
    assert line.script == "job.sh"


def test_options_are_read_after_the_script_up_to_the_first_word_that_is_none() -> None:
    line = read("job.sh", "--model", "m.txt", "-t", "10", "--epochs", "3", "-n", "4")
    assert [option.name for option in line.options] == ["model", "time"]
    assert line.script_args == ("--epochs", "3", "-n", "4")


def test_a_plain_word_after_the_script_begins_its_arguments() -> None:
    line = read("job.sh", "train", "--model", "m.txt")
    assert line.options == ()
    assert line.script_args == ("train", "--model", "m.txt")


def test_two_dashes_end_the_options_before_and_after_the_script() -> None:
    after = read("job.sh", "--model", "m.txt", "--", "--time", "5")
    assert after.script_args == ("--time", "5")
    before = read("--model", "m.txt", "--", "-odd.sh", "--time", "5")
    assert (before.script, before.script_args) == ("-odd.sh", ("--time", "5"))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--mem=4G"], [("mem", "4G")]),
        (["--comment="], [("comment", "")]),
        (["--exclusive=user"], [("exclusive", "user")]),
        (["--exclusive-gpu"], [("exclusive-gpu", None)]),
        (["-pgpu"], [("partition", "gpu")]),
        (["-Hn", "4"], [("hold", None), ("ntasks", "4")]),
        (["-koff"], [("no-kill", "off")]),
        (["--part", "gpu"], [("partition", "gpu")]),
        (["--batch-s", "8"], [("batch-size", "8")]),
        (["--tasks-per-node", "2"], [("ntasks-per-node", "2")]),
        (["--gpu", "a100"], [("gpu", "a100")]),
    ],
)
def test_every_way_to_write_an_option_is_understood(argv: List[str], expected: Any) -> None:
    assert found(*argv, "job.sh") == expected
    assert read(*argv, "job.sh").script == "job.sh"


def test_an_abbreviation_that_sbatch_knows_stays_sbatchs() -> None:
    # --op could be --optimizer or --open-mode; with sbatch it has always been --open-mode.
    assert found("--op", "append", "job.sh") == [("open-mode", "append")]


def test_an_ambiguous_abbreviation_is_left_to_sbatch() -> None:
    line = read("--gpus-per", "1", "job.sh")
    assert line.options[0].words == ("--gpus-per",)
    assert not line.options[0].ours


def test_a_missing_value_at_the_end_is_noticed() -> None:
    assert read("job.sh", "--model").missing_value == "model"
    assert read("job.sh", "-p").missing_value == "partition"


def test_a_colon_makes_a_heterogeneous_job() -> None:
    assert read("-n1", ":", "-n2", "job.sh").het_job
    assert not read("job.sh", "x", ":", "y").het_job


def test_options_of_plugins_are_learned_from_sbatchs_help() -> None:
    text = (
        "Options provided by plugins:\n"
        "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]  the image\n"
        "      --container-writable    make it writable\n"
        "      --x11[=batch]           forward X11\n"
    )
    more = options_from_help(text)
    assert more == [
        OptionSpec("container-image", "", REQUIRED),
        OptionSpec("container-writable", "", NO_VALUE),
        OptionSpec("x11", "", OPTIONAL),
    ]
    line = read_command_line(
        ["--container-image", "a#b", "job.sh", "--container-writable", "--model", "m"],
        TABLE,
        ask_more=lambda: more,
    )
    assert [option.name for option in line.options] == ["container-image", "container-writable", "model"]


def test_an_unknown_option_before_the_script_is_handed_on() -> None:
    line = read("--no-such-thing=5", "job.sh")
    assert [option.words for option in line.options] == [("--no-such-thing=5",)]
    assert line.script == "job.sh"


_WORDS = st.one_of(
    st.sampled_from(
        ["--", ":", "-", "-H", "-n4", "-J", "--model", "--mem=1", "--nope", "job.sh", "--part", "-Gx"]
    ),
    st.text(min_size=0, max_size=6),
)


@given(st.lists(_WORDS, max_size=8))
def test_no_word_is_lost_or_doubled(argv: List[str]) -> None:
    line = read_command_line(argv, TABLE)
    kept = [word for option in line.options for word in option.words]
    rest = [*([line.script] if line.script is not None else []), *line.script_args]
    said = "".join(kept + rest).replace("-", "")
    # Bundles are split and one "--" or ":" may go; everything else stands as it stood.
    assert sorted(said.replace(":", "")) == sorted("".join(argv).replace("-", "").replace(":", ""))
    assert list(line.script_args) == argv[len(argv) - len(line.script_args) :]


@pytest.mark.slurm
def test_the_table_agrees_with_the_installed_sbatch(cluster: Any) -> None:
    """Each option sbatch knows takes its value as the table says; what it does not know is newer than it."""
    unknown = set()
    for spec in TABLE.specs():
        if spec.ours or spec.name in ("help", "usage", "version"):
            continue
        bare = cluster.run(["sbatch", f"--{spec.name}"]).stderr
        if "unrecognized option" in bare:
            unknown.add(spec.name)
            continue
        # Whether a value may follow an equals sign changes between versions, and changes no reading.
        assert ("requires an argument" in bare) == (spec.kind == REQUIRED), spec
    assert len(unknown) < 15, unknown


@pytest.mark.slurm
def test_every_option_of_the_installed_sbatch_is_in_the_table(cluster: Any) -> None:
    text = cluster.run(["sbatch", "--help"], check=True).stdout
    names = {spec.name for spec in TABLE.specs()}
    assert {spec.name for spec in options_from_help(text)} - names == set()
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0].startswith("-") and not words[0].startswith("--"):
            letter = words[0].rstrip(",")[1:]
            spec = TABLE.short(letter)
            assert spec is not None, line
            assert words[1][2:].split("=")[0].split("[")[0] == spec.name, line


def test_the_reader_agrees_with_getopt_on_our_own_words() -> None:
    """util-linux's getopt, an independent reader of the same rules, takes the same values."""
    argv = ["-Hn", "4", "--comm", "a b", "-J", "--model", "--exclusive=user", "--mem=4G"]
    told = subprocess.run(
        ["getopt", "-o", "+Hn:J:", "-l", "comment:,exclusive::,mem:", "--", *argv, "job.sh"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    import shlex

    expected = "-H -n 4 --comment 'a b' -J --model --exclusive user --mem 4G -- job.sh"
    assert shlex.split(told) == shlex.split(expected)
    assert found(*argv, "job.sh") == [
        ("hold", None), ("ntasks", "4"), ("comment", "a b"), ("job-name", "--model"), ("exclusive", "user"),
        ("mem", "4G"),
    ]  # fmt: skip
