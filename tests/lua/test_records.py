"""The plug-in's reader of the comment's record and Python's agree."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from slurm_gpumem.formats.comment import PREFIX, CommentRecord, append_record, format_record
from tests.lua.played import INTERPRETERS, LUA_FOLDER

RECORDS = [
    CommentRecord(),
    CommentRecord(request_mib=4096, estimator="mem", shards=4, on_oom="fail"),
    CommentRecord(
        estimate_mib=12045,
        request_mib=13312,
        gpu="a100-80",
        batch=128,
        shards=0,
        slow="1.15",
        model="my model (v2)",
        variant="ddp2+acc4",
        parts="1+2+3+4+5+6+7",
        retry=1,
        why="oom",
        whole="yes",
        other=(("new-key", "x"),),
    ),
]
PRINT_FIELDS = """
local found = dofile(arg[1] .. "/gpumem_read.lua").find_record(arg[2])
for key, value in pairs(found) do print(key .. "=" .. value) end
"""


@pytest.mark.parametrize("interpreter", INTERPRETERS)
@pytest.mark.parametrize("record", RECORDS)
def test_lua_reads_the_fields_that_python_wrote(interpreter: str, record: CommentRecord) -> None:
    if shutil.which(interpreter) is None:
        pytest.skip(f"{interpreter} is not installed")
    comment = append_record("gpumem/1:req=1 mine", format_record(record)) or ""
    done = subprocess.run(
        [interpreter, "-", str(LUA_FOLDER), comment],
        input=PRINT_FIELDS,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    written = format_record(record)[len(PREFIX) :]
    assert set(done.stdout.split()) == set(filter(None, written.split(",")))
