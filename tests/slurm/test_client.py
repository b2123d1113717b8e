"""Calling Slurm's commands: what goes wrong is said by its meaning."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.slurm.client import (
    COMMANDS,
    Commands,
    SlurmMissingError,
    SlurmUnreachableError,
    parse_version,
    slurm_version,
)
from tests.support.fake_slurm import FakeSlurm, UnknownCommandError

needs_scontrol = pytest.mark.skipif(shutil.which("scontrol") is None, reason="needs Slurm's commands")


def test_a_missing_command_is_named() -> None:
    with pytest.raises(SlurmMissingError, match="no-such-slurm-command: not found on the PATH"):
        COMMANDS.run(["no-such-slurm-command"])


def test_a_mute_controller_is_given_up_in_time() -> None:
    with pytest.raises(SlurmUnreachableError, match="no answer from the Slurm controller within"):
        COMMANDS.run(["sleep", "30"], timeout_s=0.2)


def test_what_a_command_said_is_passed_on() -> None:
    with pytest.raises(SlurmError, match=r"ls /dev/null/nothing: .*Not a directory"):
        COMMANDS.run(["ls", "/dev/null/nothing"])


@needs_scontrol
def test_a_machine_without_a_configuration_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    if Path("/etc/slurm/slurm.conf").exists():
        pytest.skip("this machine belongs to a cluster of its own")
    with pytest.raises(SlurmUnreachableError, match="finds no Slurm configuration on this machine") as caught:
        COMMANDS.run(["scontrol", "show", "config"], timeout_s=120)
    assert "\n" not in str(caught.value)


def test_commands_of_another_folder_and_environment_are_used(tmp_path: Path) -> None:
    program = tmp_path / "sinfo"
    program.write_text('#!/bin/sh\necho "slurm $SITE_VERSION"\n')
    program.chmod(0o755)
    assert slurm_version(Commands({"SITE_VERSION": "22.05.8"}, tmp_path)) == (22, 5, 8)


def test_squeue_writes_all_tasks_of_an_array_whatever_the_user_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_BITSTR_LEN", "64")
    assert COMMANDS.run(["printenv", "SLURM_BITSTR_LEN"]) == "0\n"


def test_bytes_that_are_no_text_survive_the_reading() -> None:
    assert os.fsencode(COMMANDS.run(["printf", r"\351"])) == b"\xe9"


@pytest.mark.parametrize(
    ("text", "version"),
    [("slurm 22.05.8", (22, 5, 8)), ("26.05.5-1", (26, 5, 5)), ("slurm-wlm 24.11.5\n", (24, 11, 5))],
)
def test_a_version_is_read_however_it_is_wrapped(text: str, version: object) -> None:
    assert parse_version(text) == version


def test_a_text_without_a_version_is_an_error() -> None:
    with pytest.raises(SlurmError, match="no Slurm version in 'slurm'"):
        parse_version("slurm")


def test_the_fake_answers_what_was_recorded_and_nothing_else() -> None:
    fake = FakeSlurm({"squeue": "all", "squeue -t PENDING": "some", "scancel": SlurmError("no")})
    assert fake.run(["squeue", "-h", "-t", "PENDING"]) == "some"
    assert fake.run(["squeue", "-h"]) == "all"
    with pytest.raises(SlurmError, match="no"):
        fake.run(["scancel", "7"])
    with pytest.raises(UnknownCommandError, match="scontrol show job 7"):
        fake.run(["scontrol", "show", "job", "7"])
    assert len(fake.asked) == 4
