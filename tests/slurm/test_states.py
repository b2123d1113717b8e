"""Slurm's states are named once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import slurm_gpumem
from slurm_gpumem.slurm.state.queue import CODES, FINAL, WAITING, SlurmJob

PACKAGE = Path(slurm_gpumem.__file__).parent


@pytest.mark.parametrize("state", FINAL)
def test_a_job_in_a_final_state_is_over(state: str) -> None:
    job = SlurmJob(1, 1000, None, state)
    assert (job.is_over, job.is_here) == (True, False)
    assert state in CODES.values()
    assert state not in WAITING


def test_no_other_module_lists_the_final_states() -> None:
    rare = {"BOOT_FAIL", "DEADLINE", "REVOKED"}
    named = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if any(word in path.read_text() for word in rare)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and any(word in node.value.replace("|", " ").split() for word in rare)
    }
    assert named == {"slurm/state/queue.py"}
