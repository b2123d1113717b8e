"""Calling Slurm's commands: what goes wrong is said by its meaning."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.slurm.client import SlurmMissingError, SlurmUnreachableError, run

needs_scontrol = pytest.mark.skipif(shutil.which("scontrol") is None, reason="needs Slurm's commands")


def test_a_missing_command_is_named() -> None:
    with pytest.raises(SlurmMissingError, match="no-such-slurm-command: not found on the PATH"):
        run(["no-such-slurm-command"])


def test_a_mute_controller_is_given_up_in_time() -> None:
    with pytest.raises(SlurmUnreachableError, match="no answer from the Slurm controller within"):
        run(["sleep", "30"], timeout_s=0.2)


def test_what_a_command_said_is_passed_on() -> None:
    with pytest.raises(SlurmError, match=r"ls /dev/null/nothing: .*Not a directory"):
        run(["ls", "/dev/null/nothing"])


@needs_scontrol
def test_a_machine_without_a_configuration_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    if Path("/etc/slurm/slurm.conf").exists():
        pytest.skip("this machine belongs to a cluster of its own")
    with pytest.raises(SlurmUnreachableError, match="finds no Slurm configuration on this machine") as caught:
        run(["scontrol", "show", "config"], timeout_s=15)
    assert "\n" not in str(caught.value)
