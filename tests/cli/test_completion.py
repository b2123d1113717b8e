"""Completion in real shells: the words that a Tab offers."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import List, Set

import pytest

from slurm_gpumem.cli.gpumem import COMMANDS
from slurm_gpumem.cli.manual.__main__ import main
from slurm_gpumem.estimators.types import OPTIMIZERS, PRECISIONS

CASES = [
    ("gpumem ", set(COMMANDS)),
    ("gpumem est", {"estimate"}),
    ("gpumem node ", {"status", "metrics"}),
    ("gpumem node status --wat", {"--watch"}),
    ("gpumem estimate --optim", {"--optimizer"}),
    ("gpumem estimate --optimizer ", set(OPTIMIZERS)),
    ("gpumem estimate --precision amp", {name for name in PRECISIONS if name.startswith("amp")}),
    ("gpumem report --by par", {"partition"}),
    ("gpusbatch --on-oom ", {"requeue", "fail"}),
    ("gpusbatch --parti", {"--partition"}),
    ("gpusrun --gpu-me", {"--gpu-mem"}),
    ("gpusalloc --exclusive-g", {"--exclusive-gpu"}),
]
UNIQUE = [(line, words) for line, words in CASES if len(words) == 1]


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


def test_bash_understands_a_value_behind_an_equals_sign(shared: Path, tmp_path: Path) -> None:
    # Readline hands --on-oom=re over as three words.
    assert _bash(shared, "gpusbatch --on-oom = re", tmp_path) == {"requeue"}


def test_the_bash_files_pass_shellcheck(shared: Path) -> None:
    files = sorted(map(str, (shared / "bash-completion" / "completions").iterdir()))
    command = [_needs("shellcheck"), "-s", "bash", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize(("line", "words"), CASES, ids=[line for line, _ in CASES])
def test_fish_offers(shared: Path, line: str, words: Set[str], tmp_path: Path) -> None:
    file = shared / "fish" / "vendor_completions.d" / f"{line.split()[0]}.fish"
    command = [_needs("fish"), "--no-config", "-c", f"source {file}; complete -C '{line}'"]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    assert {row.partition("\t")[0] for row in done.stdout.splitlines()} == words


class _Zsh:
    """An interactive zsh on a terminal of its own."""

    def __init__(self, functions: Path, home: Path) -> None:
        _needs("zsh")
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(home)
            environ = {"PATH": "/usr/bin:/bin", "HOME": str(home), "TERM": "dumb", "LC_ALL": "C.UTF-8"}
            os.execve(shutil.which("zsh") or "zsh", ["zsh", "-f", "-i"], environ)
        self._lines, self._unread = 0, ""
        self.type(f"PS1='rea''dy> '; fpath=({functions} $fpath); autoload -U compinit; compinit -D\n")
        self.next_line()

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def read_until(self, text: str) -> str:
        """What it shows next, up to and with some text; all of it where that has not come in two minutes."""
        end = time.monotonic() + 120
        while text not in self._unread and time.monotonic() < end:
            if select.select([self._terminal], [], [], 0.2)[0]:
                self._unread += os.read(self._terminal, 65536).decode(errors="replace")
        before, found, self._unread = self._unread.partition(text)
        return before + found

    def next_line(self) -> None:
        """Drop what was typed, and wait for a fresh prompt."""
        self._lines += 1
        self.type(f"\x15echo li''ne{self._lines}\n")
        self.read_until(f"\nline{self._lines}")
        self.read_until("ready> ")

    def close(self) -> None:
        os.close(self._terminal)
        os.waitpid(self._pid, 0)


def test_zsh_completes(shared: Path, tmp_path: Path) -> None:
    zsh = _Zsh(shared / "zsh" / "site-functions", tmp_path)
    try:
        for line, words in UNIQUE:
            (word,) = words
            zsh.type(f"{line}\t")
            rest = word[len(line.split(" ")[-1]) :]
            shown = zsh.read_until(rest)
            assert rest in shown, f"{line!r}: {shown!r}"
            zsh.next_line()
    finally:
        zsh.close()


def test_zsh_lists_every_command_with_what_it_does(shared: Path, tmp_path: Path) -> None:
    zsh = _Zsh(shared / "zsh" / "site-functions", tmp_path)
    try:
        zsh.type("stty rows 200 columns 200; LISTMAX=0\n")
        zsh.next_line()
        zsh.type("gpumem \t\t")
        last: List[str] = sorted(COMMANDS)[-1:]
        shown = zsh.read_until(f"{last[0]} ")
        missing = [name for name in COMMANDS if name not in shown]
        assert not missing, shown
        assert "estimate a job's GPU memory" in shown
    finally:
        zsh.close()
