"""What a failed trace tells its user to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slurm_gpumem.tracing.script.messages import Advice, explain

_LINE = "train.py, line 9, in main: run()"


def _message(kind: str, words: str, **others: Any) -> str:
    state = SimpleNamespace(
        private={},
        stopped="",
        failed=f"{kind}: {words}\n{_LINE}",
        kind=kind,
        passes=0,
        notes=[],
        at="",
        **others,
    )
    return explain("train.py", state, 1.0, Advice())


@pytest.mark.parametrize(
    ("kind", "words", "told"),
    [
        ("KeyError", "'LOCAL_RANK'", "torchrun --nproc-per-node 1"),
        ("ValueError", "environment variable RANK expected, but not set", "torchrun --nproc-per-node 1"),
        ("OSError", "We couldn't connect to 'https://huggingface.co' to load the files", "download"),
        ("URLError", "<urlopen error [Errno 111] Connection refused>", "download"),
        ("OSError", "[Errno 28] No space left on device: 'cache.bin'", "prepare its caches before"),
        ("OSError", "CUDA_HOME environment variable is not set.", "measure a run instead"),
        ("ImportError", "libcudart.so.12: cannot open shared object file", "driver"),
        ("ImportError", "cannot import name 'imread' from 'scipy.misc'", "environment that the job uses"),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 90.00 GiB", "--gpu"),
        (
            "RuntimeError",
            "[enforce fail] DefaultCPUAllocator: can't allocate memory",
            "this machine's memory",
        ),
        ("EOFError", "EOF when reading a line", "echo ANSWER"),
        ("RuntimeError", "CUDA error: invalid device ordinal", "--gpus 4"),
    ],
)
def test_a_known_cause_has_its_own_advice(kind: str, words: str, told: str) -> None:
    said = _message(kind, words)
    assert _LINE in said
    assert told in said.splitlines()[-1]


def test_an_unknown_cause_is_told_apart_from_a_fault_of_the_script() -> None:
    said = _message("ValueError", "not enough values to unpack").splitlines()
    assert said[-2:] == [
        _LINE,
        "Does it fail like this without the trace, too? Then fix that first; else measure a run instead, "
        "submit it with a GPU of its own once.",
    ]


def test_words_of_the_script_are_no_cause() -> None:
    """The line of the script is shown, and not searched for causes of errors."""
    state = SimpleNamespace(
        private={},
        stopped="",
        failed="ValueError: bad\ntrain.py, line 3: nvcc = find('nvcc')",
        kind="ValueError",
        passes=0,
        notes=[],
    )
    assert "CUDA extension" not in explain("train.py", state, 1.0, Advice())


def test_too_many_processes_are_told_what_to_do() -> None:
    state = SimpleNamespace(private={}, stopped="processes", at=_LINE, notes=[])
    said = explain("train.py", state, 1.0, Advice()).splitlines()
    assert _LINE in said[1]
    assert "fewer" in said[2]
