"""The table of commands: each one loads, says what it does, and refuses what it does not know."""

from __future__ import annotations

import pytest

from slurm_gpumem.cli.gpumem import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([name, "--help"])
    except SystemExit as ended:
        code = int(ended.code or 0)
    out = capsys.readouterr().out
    assert code == 0
    assert f"gpumem {name}" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_refuses_an_option_that_it_does_not_have(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main([name, "--no-such-option"])
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_list_of_commands_names_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in COMMANDS)
