"""The demo tells a newcomer the whole story, on real daemons."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm


@pytest.mark.skipif(
    bool(os.environ.get("GPUMEM_TEST_SLURM_ROOT")), reason="the demo shows the system's Slurm"
)
def test_the_demo_shares_gpus_and_leaves_nothing_behind(state_folder: Path, tmp_path: Path) -> None:
    own = {"PYTHONIOENCODING": "ascii", "COLUMNS": "100", "TMPDIR": str(state_folder), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "slurm_gpumem.devcluster.demo"],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, **own},
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.isascii()
    picture = [line for line in done.stdout.splitlines() if re.match(r"(n\d| {2}) {2}gpu\d ", line)]
    # Two GPUs, before and after the end of one job; two others with a sweep's first task, then with all.
    assert len(picture) == 8
    assert " 1 resnet50 80 " in picture[0]
    assert " 3 vit 75 " in picture[1]
    assert " 3 vit " not in picture[3]
    assert " 8 bert 103 " in picture[3]
    assert " 9_0 sweep 140 " in picture[4]
    assert picture[5].endswith(" 0/140")
    assert " 9_0 sweep 140 " in picture[6]
    assert picture[7].endswith(" 119/140")
    rows = re.findall(
        r"^\d +\w+ +(\w+) +h200 +([\d.]+)G +([\d.]+)G +([\d.]+)G +([\d.]+)G .* COMPLETED *(.*)$",
        done.stdout,
        re.MULTILINE,
    )
    assert sorted(row[0] for row in rows) == ["bert", "gpt2", *["mobilenetv3"] * 4, "resnet50"]
    for name, estimated, need, share, peak, note in rows:
        assert 0 < float(estimated) <= float(need) <= float(share) <= 140, name
        assert note or float(peak) <= float(need), name
    assert [row[-1] for row in rows if row[-1]] == ["OOM at 8.0G -> 15.0G, finished"]
    # Cancelled while it ran: it was measured like the others.
    assert re.search(r"^3 +\w+ +vit .* 75\.0G +10\.7G +\d+ +7\S* +CANCELLED$", done.stdout, re.MULTILINE)
    assert re.search(r"; [\d.]+ GPU-minutes used; [\d.]+ without sharing;", done.stdout)
    assert "warning" not in done.stdout
    summary = done.stdout[done.stdout.index("\nArray 9 of ") :].splitlines()[1:6]
    assert summary[0].endswith(", sweep.sh: 8 tasks")
    assert summary[1:4] == [
        "  8 COMPLETED",
        "  first: 9_0 on a whole GPU (h200, 140.0G), peak 13.7G",
        "  the others: 17.0G each, up to 7 on one GPU, peaks 13.7G",
    ]
    # But for the report's last line, which a terminal wraps.
    assert max(len(line) for line in done.stdout.splitlines() if not re.match(r"\d jobs: ", line)) <= 110
    assert list(state_folder.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
