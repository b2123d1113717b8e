"""Whose fault? The user's other jobs at the same MPS daemon, when its server has faulted."""

from __future__ import annotations

from slurm_gpumem.recovery.task_epilog import jobs_hit_too
from tests.node.conftest import OTHER_USER, USER, Node, needs_root, node

__all__ = ["node"]
pytestmark = needs_root


def hit_too(node: Node, job: int) -> list[int]:
    return jobs_hit_too(node.folder, node.config, job, USER)


def test_a_fault_is_shared_by_the_users_jobs_at_that_daemon_and_by_nobody_else(node: Node) -> None:
    for job, gpu in ((7, "0"), (8, "0"), (9, "1")):
        node.hook("prolog", node.env(job, gpu=gpu))
    node.hook("prolog", node.env(10, uid=OTHER_USER))
    assert hit_too(node, 7) == []
    (node.folder.pipe(node.gpus[0].uuid, USER) / "faulted").touch()
    assert hit_too(node, 7) == [8]
    assert hit_too(node, 8) == [7]
    assert hit_too(node, 9) == []


def test_the_second_victim_learns_of_the_first_that_is_gone(node: Node) -> None:
    for job in (7, 8):
        node.hook("prolog", node.env(job))
    (node.folder.pipe(node.gpus[0].uuid, USER) / "faulted").touch()
    node.hook("epilog", {**node.env(7), "SLURM_JOB_EXIT_CODE2": "1:0"})
    (node.folder.pipe(node.gpus[0].uuid, USER) / "faulted").unlink()
    assert hit_too(node, 8) == [7]


def test_who_faults_alone_has_no_company(node: Node) -> None:
    node.hook("prolog", node.env(7))
    (node.folder.pipe(node.gpus[0].uuid, USER) / "faulted").touch()
    assert hit_too(node, 7) == []
    assert hit_too(node, 4711) == []
