"""The table of commands: each one loads, says what it does, and refuses what it does not know."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_gpumem import __version__
from slurm_gpumem.cli.gpumem import COMMANDS, READERS, main


def test_the_list_of_commands_names_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in COMMANDS)


def test_every_command_is_listed_once_by_whom_it_is_for() -> None:
    listed = [name for names in READERS.values() for name in names]
    assert sorted(listed) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_its_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--version"]) == 0
    assert capsys.readouterr().out == f"gpumem {name} {__version__}\n"


def test_another_commands_version_is_not_ours(tmp_path: Path) -> None:
    script = tmp_path / "sbatch"
    script.write_text('#!/bin/sh\necho "slurm-wlm 22.05.8 $*"\n')
    script.chmod(0o755)
    code = "import sys; from slurm_gpumem.cli.gpusbatch import main; sys.exit(main(['--version']))"
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"gpusbatch {__version__}\nslurm-wlm 22.05.8 --version\n"
