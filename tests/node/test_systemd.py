"""What systemd makes of our unit and our command lines; asked of its tools, since it does not run here."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from slurm_gpumem.node.hooks import service
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.node.mps import daemons
from slurm_gpumem.node.mps.daemons import MpsService
from tests.node.conftest import REPOSITORY, needs_root

UNIT = REPOSITORY / "prolog" / "gpumem-sampler.service"


def test_systemd_finds_nothing_wrong_with_the_samplers_unit(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("needs systemd-analyze")
    text = UNIT.read_text()
    assert "/opt/gpumem/bin/python3 -I -m slurm_gpumem.node.sampler --stay" in text
    unit = tmp_path / UNIT.name
    # The verifier wants every program to be there.
    unit.write_text(text.replace("/opt/gpumem/bin/python3", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if UNIT.name in line]) == (0, [])


@needs_root
def test_systemd_run_knows_every_option_that_hooks_start_daemons_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("systemd-run"):
        pytest.skip("needs systemd-run")
    monkeypatch.setattr(daemons, "_has_systemd", lambda: True)
    monkeypatch.setattr(service.os.path, "isdir", lambda path: True)
    daemon = MpsService(RunFolder(tmp_path), "/bin/true")._launcher("GPU-aa", 65534)
    sampler = service.sampler_command("n1", {"PATH": "/bin"})
    for command, program in ((daemon, "/bin/true"), (sampler, sys.executable)):
        options = command[1 : command.index(program)]
        assert options
        assert _accepted([*options, "--version"])
    assert not _accepted(["--no-such-option", "--version"])


def _accepted(options: List[str]) -> bool:
    """Whether the options before the last, which ends it, are understood."""
    done = subprocess.run(["systemd-run", *options], capture_output=True, timeout=120, check=False)
    return done.returncode == 0
