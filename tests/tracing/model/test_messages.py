"""Exceptions of the user's code as messages, without starting a process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="no PyTorch here")

from slurm_gpumem.tracing.model.spec import Target, TraceRequest, parse_input
from slurm_gpumem.tracing.model.training import failure
from slurm_gpumem.tracing.script.hints import PHASE
from slurm_gpumem.tracing.script.messages import Advice, explain

REQUEST = TraceRequest(Target("file", "/x/train.py", "build"), 4, (parse_input("3,8,8"),))


def _raised(code: str, tmp_path: Path) -> BaseException:
    """The exception of a file of its own, as a user's would be."""
    path = tmp_path / "train.py"
    path.write_text(code)
    try:
        exec(compile(code, str(path), "exec"), {})
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
        ("raise ConnectionError('x')", "building the model", "tried to download"),
        ("raise TypeError('missing 1 required positional argument')", "tracing the model", "name inputs by"),
        ("raise RuntimeError('libcudart.so not found')", "importing train.py", "CUDA extensions"),
        ("raise ValueError('init_process_group: torch.distributed')", "building the model", "one process"),
    ],
)
def test_each_says_what_it_means_and_where(tmp_path: Path, code: str, phase: str, said: str) -> None:
    text = failure(_raised(code, tmp_path), phase, REQUEST)
    assert text.startswith("train.py:build: ")
    assert said in text
    assert "train.py, line " in text


def test_a_long_message_is_cut_to_its_first_line(tmp_path: Path) -> None:
    error = _raised("raise ValueError('a' * 1000 + '\\n' + 'b')", tmp_path)
    text = failure(error, "building the model", REQUEST)
    assert max(len(line) for line in text.splitlines()) < 300
    assert "b" not in text.splitlines()[-1]


def test_the_time_limit_names_what_was_going_on_and_the_line() -> None:
    state = SimpleNamespace(
        stopped="time", kind=PHASE, failed="building the model", torch_processes=1, notes=[],
        at="train.py, line 9, in build: time.sleep(1)",
    )  # fmt: skip
    assert explain("train.py:build", state, 120.0, Advice()).splitlines() == [
        "train.py:build: building the model took longer than 120 s.",
        "It was in train.py, line 9, in build: time.sleep(1)",
        "Name a function that only builds the model (no data, no training), or allow more with "
        "--time-limit 600.",
    ]
