"""Act as a user who is not root, with a Python that has the package and torch."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

USER = 1
"""daemon: every Linux has it. Not nobody, as which files of all unmapped users appear in a user namespace."""
ROOT = Path(__file__).resolve().parents[2]


def as_user() -> Dict[str, Any]:
    """What `subprocess` needs to become that user; nothing where the tests are an ordinary user's."""
    return {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}


def user_id() -> int:
    """Who acts."""
    return USER if os.geteuid() == 0 else os.geteuid()


def own(path: Path) -> Path:
    """Give it to that user."""
    if os.geteuid() == 0:
        os.chown(path, USER, USER)
    return path


@functools.cache
def user_python() -> Optional[Tuple[str, Dict[str, str]]]:
    """A Python that the user may start and its environment; None where there is none."""
    # Ours may be in a home directory that others cannot enter: then the system's, with our packages.
    path = os.pathsep.join([str(ROOT), *_packages()])
    system = _copied_python() if os.environ.get("GPUMEM_TEST_SLURM_ROOT") else "/usr/bin/python3"
    for python, more in ((sys.executable, {}), (system, {"PYTHONPATH": path})):
        if _runs(python, more):
            return python, more
    return None


def _copied_python() -> str:
    """The system's Python where a tree's jobs find it, too: in the tree, /usr has another version."""
    folder = Path(tempfile.mkdtemp(prefix="gpumem-python-"))
    atexit.register(shutil.rmtree, folder)
    folder.chmod(0o755)
    program = Path("/usr/bin/python3").resolve()
    (folder / "bin").mkdir()
    shutil.copy(program, folder / "bin")
    shutil.copytree(f"/usr/lib/{program.name}", folder / "lib" / program.name)
    return str(folder / "bin" / program.name)


def _packages() -> List[str]:
    spec = importlib.util.find_spec("torch")
    return [] if spec is None or spec.origin is None else [str(Path(spec.origin).parents[1])]


def _runs(python: str, more: Dict[str, str]) -> bool:
    code = "import sys, slurm_gpumem, torch.version; print(sys.version_info[:2])"
    try:
        done = subprocess.run(
            [python, "-c", code],
            env={**os.environ, **more},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            **as_user(),
        )
    except OSError:
        return False
    return done.stdout.strip() == str(sys.version_info[:2])
