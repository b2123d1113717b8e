"""Completion in a real bash: the words that a Tab offers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Set

import pytest

from slurm_gpumem.cli.gpumem import COMMANDS
from slurm_gpumem.cli.manual import main

CASES = [
    ("gpumem ", set(COMMANDS)),
    ("gpumem est", {"estimate"}),
    ("gpumem node ", {"status"}),
    ("gpumem node status --js", {"--json"}),
    ("gpumem estimate --optim", {"--optimizer"}),
    ("gpusbatch --parti", {"--partition"}),
    ("gpusrun --gpu-me", {"--gpu-mem"}),
    ("gpusalloc --exclusive-g", {"--exclusive-gpu"}),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    assert main([str(folder)]) == 0
    return folder


def _needs(shell: str) -> str:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"needs {shell}")
    return path


def _bash(shared: Path, line: str, folder: Path) -> Set[str]:
    words = line.split(" ")
    script = """
        source "$1" && shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        "_$1"
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    file = shared / "bash-completion" / "completions" / words[0]
    command = [_needs("bash"), "--norc", "-c", script, "bash", str(file), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(("line", "words"), CASES, ids=[line for line, _ in CASES])
def test_bash_offers(shared: Path, line: str, words: Set[str], tmp_path: Path) -> None:
    assert _bash(shared, line, tmp_path) == words


def test_bash_offers_files_where_a_file_is_meant(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "summary.txt").touch()
    assert _bash(shared, "gpusbatch --model sum", tmp_path) == {"summary.txt"}
    assert _bash(shared, "gpumem estimate sum", tmp_path) == {"summary.txt"}


def test_the_bash_files_pass_shellcheck(shared: Path) -> None:
    files = sorted(map(str, (shared / "bash-completion" / "completions").iterdir()))
    command = [_needs("shellcheck"), "-s", "bash", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == ""
