"""When enough of a training was seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.needs import needs_torch

pytestmark = needs_torch

CROWDED = """
import os, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from slurm_gpumem.tracing.script.steps import _waited_for_a_cpu
neighbours = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        while os.getppid() != 1:  # ends by itself if nobody ends it
            pass
        os._exit(0)
    neighbours.append(pid)
try:
    before, started = _waited_for_a_cpu(), time.monotonic()
    while time.monotonic() - started < 2:
        pass
    print(_waited_for_a_cpu() - before)
finally:
    for pid in neighbours:
        os.kill(pid, 9)
"""


def test_time_in_which_others_had_the_cpu_is_not_counted_as_time_onward(tmp_path: Path) -> None:
    script = tmp_path / "crowded.py"
    script.write_text(CROWDED)
    root = Path(__file__).resolve().parents[3]
    out = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        timeout=300,
    )
    # Three processes on one CPU: each waits for more than half of the two seconds.
    assert float(out.stdout) > 0.5
