"""What the processes of a run report of PyTorch, read as the job's user at its end.

Each process that uses CUDA leaves a file in a folder of the user's own (injected/gpumem_report.py), which the
task prolog makes where the site asks for it. Only a run that leaves no doubt says anything: every process has
reported to its end, none ran beside another, each used one GPU, and the largest held its memory until its
end, so that the node's samples have seen it. Anything else in that folder, and anybody else's folder, says
nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from typing import Any, List, NamedTuple, Optional

from slurm_gpumem.files import read_plain
from slurm_gpumem.formats.comment import Used
from slurm_gpumem.formats.values import amount, clean_name, whole
from slurm_gpumem.recovery.tail import time_limit
from slurm_gpumem.units import MIB

VERSION = 1
"""As in injected/gpumem_report.py, which imports nothing of ours."""
_MOST_PROCESSES, _MOST_BYTES = 64, 4096


class _Process(NamedTuple):
    began: float
    ended: float
    reserved: int
    held: int
    torch: str
    loading: str


def report_folder(parent: str, job_id: int, run: int) -> str:
    """Where the processes of a run leave their files, as prolog/task_prolog.sh names it."""
    return f"{parent}/gpumem-reports.{job_id}.{run}"


def take_reports(folder: str, run: int) -> Optional[Used]:
    """What the run says, if anything; the folder is removed."""
    try:
        about = os.stat(folder, follow_symlinks=False)
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
            return None
        with time_limit():
            try:
                return _used(_processes(folder), run)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except (OSError, ValueError, RecursionError):
        return None  # none was made, or what lies there is no report: nothing is known of this run


def _processes(folder: str) -> List[_Process]:
    """All of them; ValueError when one has not reported to its end."""
    names = os.listdir(folder)
    if len(names) > _MOST_PROCESSES:
        raise ValueError(f"more than {_MOST_PROCESSES} processes")
    return [
        _process(
            json.loads(read_plain(f"{folder}/{name}", most_bytes=_MOST_BYTES, owners=(os.geteuid(),)).data)
        )
        for name in names
    ]


def _process(table: Any) -> _Process:
    if not isinstance(table, dict) or table.get("version") != VERSION:
        raise ValueError("no report of a process")
    began, ended, devices = amount(table.get("began")), amount(table.get("ended")), table.get("devices")
    if began is None or ended is None or not isinstance(devices, list) or len(devices) > 1:
        raise ValueError("it has not ended as a Python does, or used several GPUs")
    if not devices:
        return _Process(began, ended, 0, 0, "", "")
    pair = devices[0]
    sizes = [whole(size) for size in pair] if isinstance(pair, list) and len(pair) == 2 else []
    if not sizes or sizes[0] is None or sizes[1] is None:
        raise ValueError("its sizes are no sizes")
    words = [table.get(key) for key in ("torch", "loading")]
    torch, loading = (clean_name(word)[:40] if isinstance(word, str) else "" for word in words)
    return _Process(began, ended, sizes[0], sizes[1], torch, loading.lower())


def _used(processes: List[_Process], run: int) -> Optional[Used]:
    in_turn = sorted(processes)
    if any(earlier.ended > later.began for earlier, later in zip(in_turn, in_turn[1:])):
        return None
    largest = max(processes, key=lambda process: process.reserved, default=None)
    if largest is None or largest.reserved < MIB or largest.held < largest.reserved:
        return None
    return Used(run, -(-largest.reserved // MIB), largest.torch, largest.loading)
