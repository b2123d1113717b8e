"""What root is told of jobs that nobody has measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem.config.accounting import AccountingConfig
from slurm_gpumem.formats.job_record import MPS
from slurm_gpumem.node.jobs import NodeJob, RunFolder, put
from slurm_gpumem.report.top import everybody
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.state.running import Placement, RunningJob


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


def test_a_job_has_the_profile_of_its_own_gpu_on_its_own_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = {1: "n1", 2: "n2"}
    running = [
        RunningJob(job, str(job), 1000, 0, "usr1", "train", (node,), None, None) for job, node in on.items()
    ]
    nodes = [
        {"NodeName": "n1", "Gres": "gpu:a100:1,gpu:a100_1g.10gb:1"},
        {"NodeName": "n2", "Gres": "gpu:a100_2g.20gb:1,gpu:a100:1"},
    ]
    monkeypatch.setattr(everybody, "running_gpu_jobs", lambda commands: running)
    monkeypatch.setattr(everybody, "ask_nodes", lambda commands: nodes)
    monkeypatch.setattr(everybody, "placed", lambda commands, job: [Placement(on[int(job)], 1, "gpu", 1)])
    monkeypatch.setattr(everybody, "nodes_are_here", lambda: False)
    config = AccountingConfig(tmp_path, tmp_path, tmp_path, tmp_path)
    seen = everybody.Everybody(config, Commands()).look()
    assert [(row.node, row.gpus, row.profile) for row in seen.jobs] == [
        ("n1", (1,), "1g.10gb"),
        ("n2", (1,), ""),
    ]
