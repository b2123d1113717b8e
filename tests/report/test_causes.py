"""Why a job ended as it did: one sentence, from its records, and what to type next."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List

import pytest

from slurm_gpumem.report.causes import cause_of
from slurm_gpumem.report.job import detail_json, job_lines
from tests.accounting.job_records import opened, record, write

FAILED = {"exit_code": 1, "state": "FAILED"}
OOM = {**FAILED, "verdict": "oom", "peak_mib": 12_900.0}


def event(kind: str, **more: Any) -> Dict[str, Any]:
    return {"kind": kind, "gpu": "GPU-1", "at": 1_794_000_000.0, "with": [7], **more}


CASES = {
    "good": ([{}], "", ""),
    "running": ([{"end": None, "state": None, "events": [event("crowded")]}], "", ""),
    "out of its share": (
        [OOM],
        "It ran out of its 13.0 GiB of GPU memory.",
        "gpusbatch --gpu-mem 26G SCRIPT",
    ),
    "again with more": (
        [OOM, {"shards": 20, "limit_mib": 20_480, "peak_mib": 14_000.0}],
        "It ran out of its 13.0 GiB and completed with 20.0 GiB.",
        "gpusbatch --gpu-mem 14G SCRIPT next time",
    ),
    "with a whole GPU": (
        [OOM, {"shards": None, "limit_mib": None, "peak_mib": 30_000.0}],
        "It ran out of its 13.0 GiB and completed with a whole GPU.",
        "gpusbatch --gpu-mem 30G SCRIPT next time",
    ),
    "twice": (
        [OOM, {**OOM, "shards": 20, "limit_mib": 20_480}],
        "It ran out of its 20.0 GiB of GPU memory, again after it was given more.",
        "gpusbatch --gpu-mem 40G SCRIPT",
    ),
    "of a whole GPU": (
        [{**OOM, "shards": None, "limit_mib": None, "peak_mib": 40_000.0}],
        "It ran out of GPU memory on a whole GPU, at 39.1 GiB.",
        "gpumem fit MODEL: the largest batch that fits",
    ),
    "above its share": (
        [{**OOM, "limit_mib": 1024, "shards": 1, "peak_mib": 9216.0, "events": [event("overrun")]}],
        "It was ended because it took 9.0 GiB of its 1.0 GiB beside other jobs.",
        "gpusbatch --gpu-mem 12G SCRIPT",
    ),
    "idle": (
        [{"state": "CANCELLED", "events": [event("idle", seconds=1200), event("idle-ended", seconds=2400)]}],
        "It was cancelled because its GPU was idle for 40 min.",
        'python -c "import torch; print(torch.cuda.is_available())" in the job: does it see the GPU?',
    ),
    "cancelled": ([{"state": "CANCELLED", "events": [event("idle", seconds=1200)]}], "", ""),
    "crowded": (
        [{**FAILED, "verdict": "neighbour", "events": [event("crowded")]}],
        "It was refused memory of its own share, because another job took more than its own.",
        "sbatch SCRIPT: as it was",
    ),
    "a neighbour's fault": (
        [{**FAILED, "hints": ["neighbour-fault"], "events": [event("mps-fault")]}],
        "A GPU fault ended it and jobs beside it; whose it was nobody can tell.",
        "sbatch SCRIPT: as it was",
    ),
    "repeated": (
        [{**FAILED, "hints": ["neighbour-fault", "repeated-fault"]}],
        "A GPU fault ended it, again together with a job that was there the last time.",
        "gpusbatch --exclusive-gpu SCRIPT: alone on a GPU",
    ),
    "its own fault": (
        [{**FAILED, "hints": ["own-fault"]}],
        "A GPU fault of its own ended it: no other job was hit.",
        "CUDA_LAUNCH_BLOCKING=1 in the script, to see where; it is not the memory",
    ),
    "host memory": (
        [{**FAILED, "verdict": "host"}],
        "It ran out of host memory, not GPU memory.",
        "sbatch --mem=SIZE SCRIPT: with more than it had",
    ),
    "near its limit": (
        [{**FAILED, "peak_mib": 13_000.0, "hints": ["near-limit"]}],
        "It failed (exit code 1) at 12.7 GiB of its 13.0 GiB: perhaps out of GPU memory.",
        "gpusbatch --gpu-mem 20G SCRIPT, if its log says so",
    ),
    "something else": (
        [{**FAILED, "exit_code": 3, "peak_mib": None}],
        "Its program ended with exit code 3, at an unknown amount of its 13.0 GiB.",
        "its log says why: nothing that was measured does",
    ),
    "time": (
        [{"state": "TIMEOUT"}],
        "It reached its time limit.",
        "sbatch --time=TIME SCRIPT, or in slots (gpumem docs slots)",
    ),
    "node": ([{"state": "NODE_FAIL"}], "Its node n1 failed.", "sbatch SCRIPT: as it was"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_cause_is_one_sentence_and_one_thing_to_do(tmp_path: Path, case: str) -> None:
    runs, said, following = CASES[case]
    for number, changes in enumerate(runs):
        start = 1_794_000_000.0 + 5000 * number
        times = {"start": start, **({"end": start + 3600} if "end" not in changes else {})}
        state = {"state": "REQUEUED"} if number < len(runs) - 1 else {}
        write(tmp_path / "spool", record(1, restarts=number, **{**changes, **times, **state}))
    with opened(tmp_path) as store:
        (row,) = store.select()
        detail = store.detail(row)
    assert tuple(cause_of(row.state, detail.runs)) == (said, following)
    lines: List[str] = job_lines(detail, 1024, unicode=False)
    assert (f"  {said}" in lines) == bool(said)
    assert (f"  next: {following}" in lines) == bool(following)
    assert detail_json(detail, 1024)["cause"] == {"said": said, "next": following}


def test_of_several_nodes_the_one_that_knows_speaks(tmp_path: Path) -> None:
    write(tmp_path / "spool", record(1, node="n1", **FAILED))
    write(tmp_path / "spool", record(1, node="n2", **OOM))
    with opened(tmp_path) as store:
        (row,) = store.select()
        detail = store.detail(row)
    assert cause_of(row.state, detail.runs).said.startswith("It ran out of its 13.0 GiB")
