"""What root is told of jobs that nobody has measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem.config.accounting import AccountingConfig
from slurm_gpumem.formats.job_record import MPS
from slurm_gpumem.node.jobs import NodeJob, RunFolder, put
from slurm_gpumem.report.top import everybody
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.state.running import RunningJob


@pytest.mark.parametrize(
    ("noted", "said"),
    [
        (True, "1 job not measured yet: the sampler has not written since"),
        (False, "1 of 1 job not measured: no hooks there, or their records are not where this host can read"),
    ],
)
def test_a_job_that_a_prolog_noted_is_waited_for_and_another_has_no_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: bool, said: str
) -> None:
    running = RunningJob(1, "1", 1000, 0, "usr1", "train", ("n1",), 8, None)
    monkeypatch.setattr(everybody, "running_gpu_jobs", lambda commands: [running])
    monkeypatch.setattr(everybody, "ask_nodes", lambda commands: [])
    monkeypatch.setattr(everybody, "placed", lambda commands, job: [])
    monkeypatch.setattr(everybody, "run_dir", lambda node: tmp_path)
    monkeypatch.setattr(everybody, "nodes_are_here", lambda: True)
    folder = RunFolder(tmp_path)
    folder.make()
    if noted:
        put(folder, NodeJob(1, 1000, "usr1", ("GPU-1",), MPS, 0.0))
    config = AccountingConfig(tmp_path, tmp_path, tmp_path, tmp_path)
    [note] = everybody.Everybody(config, Commands()).look().notes
    assert note.startswith(said)
