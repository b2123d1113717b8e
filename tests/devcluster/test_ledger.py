"""The ledger stays correct whoever writes it and however they end."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from slurm_gpumem.devcluster import ledger
from slurm_gpumem.devcluster.ledger import LedgerError, LedgerGpu, OutOfMemoryError


@pytest.fixture
def gpu(tmp_path: Path) -> LedgerGpu:
    ledger.create(tmp_path, {"n1": [ledger.StandIn(1000), ledger.StandIn(2000)]})
    return LedgerGpu(tmp_path, "n1", 0)


def test_a_process_holds_what_it_last_said(gpu: LedgerGpu) -> None:
    gpu.hold(600, "1")
    gpu.hold(200, "1")
    assert gpu.holders() == {"1": 200}
    assert gpu.peaks() == {"1": 600}
    gpu.release()
    assert gpu.holders() == {}


def test_what_does_not_fit_changes_nothing(gpu: LedgerGpu) -> None:
    gpu.hold(600, "1")
    with pytest.raises(OutOfMemoryError) as caught:
        gpu.hold(1001, "1")
    assert caught.value.free_mib == 400
    assert gpu.holders() == {"1": 600}
    assert gpu.peaks() == {"1": 600}


def test_gpus_of_a_node_have_books_of_their_own(gpu: LedgerGpu) -> None:
    second = LedgerGpu(gpu.folder, "n1", 1)
    second.hold(1900, "1")
    gpu.hold(900, "1")
    assert (gpu.peaks(), second.peaks()) == ({"1": 900}, {"1": 1900})
    assert [(g.node, g.index) for g in ledger.all_gpus(gpu.folder)] == [("n1", 0), ("n1", 1)]


def test_an_unknown_gpu_is_told(gpu: LedgerGpu) -> None:
    with pytest.raises(LedgerError, match="node n1 has no GPU 7"):
        LedgerGpu(gpu.folder, "n1", 7).holders()


def _hold_and_wait(gpu: LedgerGpu, job: str, ready: object) -> None:
    gpu.hold(100, job)
    ready.release()  # type: ignore[attr-defined]
    signal.pause()


def test_the_memory_of_a_killed_process_is_free_again(gpu: LedgerGpu) -> None:
    ready = multiprocessing.Semaphore(0)
    child = multiprocessing.Process(target=_hold_and_wait, args=(gpu, "9", ready))
    child.start()
    ready.acquire()
    assert gpu.holders() == {"9": 100}
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    # A zombie holds no GPU memory either: no wait() before the look.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert gpu.holders() == {}
    gpu.hold(1000, "10")
    child.join()


def _hold_often(gpu: LedgerGpu, job: str) -> None:
    for mib in range(100):
        gpu.hold(mib, job)


def test_many_writers_at_once_lose_nothing(gpu: LedgerGpu) -> None:
    children = [multiprocessing.Process(target=_hold_often, args=(gpu, str(job))) for job in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert gpu.peaks() == {str(job): 99 for job in range(8)}


def test_a_longer_text_under_a_shorter_one_is_cut(gpu: LedgerGpu) -> None:
    gpu.hold(1, "a long name of a job")
    gpu.release()
    path = gpu.folder / "n1-gpu0.json"
    assert json.loads(path.read_text())["holders"] == []
    assert not path.read_text().endswith(" ")
