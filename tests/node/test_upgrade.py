"""The files of the package are replaced under a sampler that runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from tests.node.conftest import Node, needs_root
from tests.recovery.conftest import install_package
from tests.support.waiting import until

pytestmark = needs_root
AT_ONCE = (
    "import sys\nfrom slurm_gpumem.node.sampler import __main__ as sampler\n"
    "sampler._UNPACKED_S = {seconds}\nsys.exit(sampler.main(['--node', 'n1', '--stay']))\n"
)


def test_a_sampler_goes_on_with_the_version_that_was_installed(node: Node, tmp_path: Path) -> None:
    python = install_package(tmp_path / "python")
    package = tmp_path / "python" / "packages" / "slurm_gpumem"
    program = [str(python), "-I", "-c", AT_ONCE.format(seconds=0)]
    env = {"PATH": os.environ["PATH"], "GPUMEM_RUN_DIR": str(node.folder.root)}
    env["GPUMEM_SITE_CONFIG"] = str(node.root / "gpumem.toml")
    log = node.folder.root / "log"
    with subprocess.Popen(program, env=env, cwd="/") as sampler:
        try:
            until(lambda: node.folder.live.exists())
            # No file for a moment, as under pip: it waits for one.
            shutil.move(package / "__init__.py", package / "of-before")
            first = json.loads(node.folder.live.read_text())["at"]
            until(lambda: json.loads(node.folder.live.read_text())["at"] > first)
            assert "begins again" not in log.read_text()
            new = (package / "of-before").read_text().replace('__version__ = "', '__version__ = "9')
            (package / "__init__.py").write_text(new)
            until(lambda: log.read_text().count("sampler: ") == 3, but=log.read_text)
            assert "begins again with the version" in log.read_text()
            words = Path(f"/proc/{sampler.pid}/cmdline").read_bytes().split(b"\0")[1:-1]
            assert words == [b"-I", b"-m", b"slurm_gpumem.node.sampler", b"--node", b"n1", b"--stay"]
            (served,) = (node.folder.inbox / "sampler").read_text().split()
            assert int(served) == sampler.pid
        finally:
            sampler.kill()
