from __future__ import annotations

import shutil
import time

import pytest

from slurm_gpumem.node import jobs
from slurm_gpumem.node.jobs import NodeJob
from slurm_gpumem.node.log import ProblemLog
from slurm_gpumem.node.mps.daemons import MpsService
from slurm_gpumem.node.mps.stale_daemons import Orphans
from tests.node.conftest import USER, Node, needs_root

pytestmark = needs_root


@pytest.fixture
def orphans(node: Node) -> Orphans:
    made = Orphans(node.folder, node.config, ProblemLog(node.folder.root))
    made.stop([])  # the first time it searches /proc
    return made


def started(node: Node) -> str:
    uuid = node.gpus[0].uuid
    assert node.mps.ensure(uuid, USER, in_use=False)
    return uuid


def test_a_daemon_that_no_job_needs_is_found_by_its_folder(node: Node, orphans: Orphans) -> None:
    uuid = started(node)
    orphans.stop([])
    assert node.mps.daemons() == []
    assert not (node.folder.mps / uuid).exists()


def test_one_that_is_needed_is_left_alone_without_a_search_of_proc(
    node: Node, orphans: Orphans, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = started(node)
    running = node.mps.daemons()
    assert running
    job = NodeJob(1, USER, "u", (uuid,), "mps", time.time())
    jobs.put(node.folder, job)
    with monkeypatch.context() as patch:
        patch.setattr(MpsService, "daemons", lambda *_: pytest.fail("searched"))
        orphans.stop([job])
    orphans.stop([job], search=True)
    assert node.mps.daemons() == running


def test_one_without_a_folder_is_found_by_a_search(node: Node, orphans: Orphans) -> None:
    uuid = started(node)
    shutil.rmtree(node.folder.mps / uuid)
    orphans.stop([])
    assert node.mps.daemons()
    orphans.stop([], search=True)
    assert node.mps.daemons() == []
