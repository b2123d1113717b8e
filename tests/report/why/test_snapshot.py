from __future__ import annotations

import pickle
import pickletools
from typing import Any

from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.traced.advice import peak_reasons
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.report.why import snapshot_file
from tests.estimators.explain.small_trace import small_summary
from tests.support.needs import needs_torch


def written() -> bytes:
    summary = small_summary()
    assert summary.trace is not None
    return snapshot_file(summary.trace, summary.trace.job.batch, find_gpu("a100"))


def test_the_snapshots_highest_moment_is_the_peak() -> None:
    summary = small_summary()
    assert summary.trace is not None
    (entries,) = pickle.loads(written())["device_traces"]
    live = most = 0
    for entry in entries:
        live += {"alloc": entry["size"], "free_completed": -entry["size"]}.get(entry["action"], 0)
        most = max(most, live)
    reasons = peak_reasons(summary, TrainingJob(summary.trace.job.batch), find_gpu("a100"))
    assert most == reasons.timeline.peak_bytes
    assert {"weights", "activations", "optimizer"} <= {entry["category"] for entry in entries}


def test_a_snapshot_holds_plain_values_only() -> None:
    names = {operation.name for operation, _, _ in pickletools.genops(written())}
    assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD", "INST", "OBJ"}


@needs_torch
def test_pytorchs_own_reader_takes_a_snapshot() -> None:
    from torch.cuda import _memory_viz

    snapshot: Any = pickle.loads(written())
    shown = _memory_viz.trace(snapshot)
    assert f"{len(snapshot['device_traces'][0])} entries" in shown
