"""The start-up hook that stands before a user's own sitecustomize."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_gpumem.data import package_folder

HOOK = package_folder("injected")
PYENV = Path("~/.pyenv/versions").expanduser()
PYTHONS = [sys.executable, *sorted(str(path) for path in PYENV.glob("*/bin/python"))]


def _start(python: str, own: Path, code: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([HOOK, str(own)])
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([python, "-c", code], env=env, capture_output=True, text=True, check=True)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_users_own_sitecustomize_runs_as_before_in_every_python(python: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.mine = __name__ + ' ' + __file__\n")
    done = _start(python, tmp_path, "import sys; print(sys.mine)")
    assert (done.stdout, done.stderr) == (f"sitecustomize {tmp_path / 'sitecustomize.py'}\n", "")


def test_an_error_in_the_users_own_sitecustomize_is_said_as_python_says_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('mine')\n")
    done = _start(sys.executable, tmp_path, "")
    assert "Error in sitecustomize" in done.stderr
    assert "RuntimeError: mine" in done.stderr
