"""The primary controller is gone and the backup is in charge: submission, doctor and recovery go on."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Callable, Iterator

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from slurm_gpumem.devcluster.spec import default_nodes
from tests.recovery.conftest import Site, hurried, make_site, needs_root

pytestmark = [
    needs_root,
    pytest.mark.slurm,
    pytest.mark.skipif(
        bool(os.environ.get("GPUMEM_TEST_SLURM_ROOT")),
        reason="from 24.11 on a backup controller on the primary's own host does not take over",
    ),
]

PROGRAMS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def backup(make_module_cluster: Callable[..., Cluster]) -> Iterator[Site]:
    """A site whose first SlurmctldHost never answers; ours, the second, takes over."""
    with tempfile.TemporaryDirectory(prefix="gpumem-") as folder:
        Path(folder).chmod(0o755)
        second = Path(folder) / "second=backup.conf"
        second.write_text(f"SlurmctldHost={socket.gethostname().split('.')[0]}(127.0.0.1)\n")
        made = make_site(
            make_module_cluster,
            "SlurmctldHost=gone(127.0.0.9)",
            f"Include {second}",
            "SlurmctldTimeout=1",
            # Else our controller would answer on the address of the one that is gone.
            "CommunicationParameters=NoCtldInAddrAny",
            nodes=default_nodes(1),
        )
        with hurried(made) as site:
            yield site


def test_gpusbatch_submits_to_the_backup(backup: Site) -> None:
    words = ["--parsable", "--gpu-mem", "12G", "-o", "/dev/null", "--wrap", "true"]
    done = backup.cluster.run([str(PROGRAMS / "gpusbatch"), *words])
    assert done.returncode == 0, done.stderr
    assert "12 of 40 shards" in done.stderr
    backup.ended(done.stdout.strip(), "COMPLETED")
