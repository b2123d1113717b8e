"""Exceptions of the user's code as messages, without starting a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem.tracing.child.rules import NetworkRefusedError, Rules
from slurm_gpumem.tracing.child.spec import Target, TraceRequest, parse_input
from slurm_gpumem.tracing.child.worker import Line, message_for

REQUEST = TraceRequest(Target("file", "/x/train.py", "build"), 4, (parse_input("3,8,8"),))


def _line(phase: str) -> Line:
    line = Line(-1)
    line.phase = phase
    return line


def _raised(code: str, tmp_path: Path) -> BaseException:
    """The exception of a file of its own, as a user's would be."""
    path = tmp_path / "train.py"
    path.write_text(code)
    try:
        exec(compile(code, str(path), "exec"), {"NetworkRefusedError": NetworkRefusedError})
    except BaseException as error:  # noqa: BLE001 - whatever it raises is what is looked at
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("code", "phase", "said"),
    [
        ("import no_such_package", "importing train.py", "needs the package 'no_such_package'"),
        ("def f(): f()\nf()", "building the model", "endless recursion"),
        ("raise EOFError", "building the model", "asks for input"),
        ("raise MemoryError", "building the model", "not enough host memory"),
        ("raise NetworkRefusedError('x')", "building the model", "tried to download"),
        ("raise TypeError('missing 1 required positional argument')", "tracing the model", "name inputs by"),
        ("raise RuntimeError('libcudart.so not found')", "importing train.py", "CUDA extensions"),
        ("raise ValueError('init_process_group: torch.distributed')", "building the model", "one process"),
    ],
)
def test_each_says_what_it_means_and_where(tmp_path: Path, code: str, phase: str, said: str) -> None:
    text = message_for(_raised(code, tmp_path), _line(phase), Rules(), REQUEST)
    assert text.startswith("train.py:build: ")
    assert said in text
    assert "train.py, line " in text


def test_a_long_message_is_cut_to_its_first_line(tmp_path: Path) -> None:
    error = _raised("raise ValueError('a' * 1000 + '\\n' + 'b')", tmp_path)
    text = message_for(error, _line("building the model"), Rules(), REQUEST)
    assert max(len(line) for line in text.splitlines()) < 300
    assert "b" not in text.splitlines()[-1]
