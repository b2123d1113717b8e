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
        [sys.executable, "-m", "slurm_gpumem.cli.demo"],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, **own},
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.isascii()
    picture = [line for line in done.stdout.splitlines() if re.match(r"(n\d| {2}) {2}gpu\d ", line)]
    assert len(picture) == 8
    assert " 1 resnet50 " in picture[0]
    assert " 2 bert " in picture[0]
    rows = re.findall(
        r"^\d +(\w+) +([\d.]+) GiB +([\d.]+) GiB +([\d.]+) GiB +([\d.]+) GiB +COMPLETED$",
        done.stdout,
        re.MULTILINE,
    )
    assert [row[0] for row in rows] == ["resnet50", "bert", "mobilenetv3", "vit", "gpt2"]
    for name, estimated, need, share, measured in rows:
        assert 0 < float(estimated) <= float(need) <= float(share) <= 40, name
        assert 0 < float(measured) <= float(need), name
    assert "warning" not in done.stdout
    unprepared = done.stdout.partition("6. A script that nobody prepared")[2]
    line = (
        r"gpumem: .* batch 128, AdamW, fp32 -> peak [\d.]+ GiB,\n"
        r" +asking for \d+ of 40 shards .* keeps the GPU \d+ % busy \(memory alone: 3\)"
    )
    assert re.search(line, unprepared)
    assert max(map(len, done.stdout.splitlines())) <= 110
    assert list(state_folder.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
