"""Exceptions that a traced command only printed are named like those that the tracer saw."""

from __future__ import annotations

from pathlib import Path
from typing import Dict

import pytest

from slurm_gpumem.errors import TargetError
from slurm_gpumem.tracing.script.messages import printed_error
from slurm_gpumem.tracing.script.run import Limits, trace_command

_PRINTED = """\
loading
Traceback (most recent call last):
  File "/home/me/train.py", line 8, in <module>
    main()
  File "/home/me/data.py", line 31, in read
    return table[name]
           ~~~~~^^^^^^
  File "/opt/conda/lib/python3.12/site-packages/pandas/frame.py", line 4102, in __getitem__
    indexer = self.columns.get_loc(key)
pandas.errors.KeyError: 'label'
Error in cleanup, ignored
"""


def test_the_last_traceback_gives_the_error_and_the_users_innermost_line() -> None:
    found = printed_error(_PRINTED)
    assert found is not None
    assert found.kind == "KeyError"
    assert found.text == "KeyError: 'label'\ndata.py, line 31, in read: return table[name]"


@pytest.mark.parametrize(
    "output", ["", "ValueError: without a traceback", "epoch 1\nusage: train.py\ntrain.py: error: --lr"]
)
def test_an_output_without_a_traceback_has_no_error(output: str) -> None:
    assert printed_error(output) is None


def test_a_traceback_of_libraries_alone_has_no_line_of_the_user() -> None:
    frame = '  File "/usr/lib64/python3.9/runpy.py", line 3, in run\n    go()\n'
    found = printed_error(f"{frame}OSError: no")
    assert found is not None
    assert found.text == "OSError: no"


@pytest.mark.parametrize(
    ("name", "files", "told"),
    [
        (
            "train.py",
            {"train.py": "def read():\n    open('none.csv')\nread()\nimport torch\n"},
            ["before it imported torch", "train.py, line 2, in read: open('none.csv')", "Prepare its data"],
        ),
        ("gone.py", {}, ["can't open file", "with its path"]),
        ("usage.py", {"usage.py": "import sys; sys.exit(2)\n"}, ["Are its arguments right?"]),
    ],
)
def test_a_command_that_ends_before_torch_is_imported_is_told_why(
    tmp_path: Path, name: str, files: Dict[str, str], told: list[str]
) -> None:
    for path, text in files.items():
        (tmp_path / path).write_text(text)
    with pytest.raises(TargetError) as raised:
        trace_command(["python3", name], Limits(seconds=60), folder=str(tmp_path))
    for words in told:
        assert words in str(raised.value)
