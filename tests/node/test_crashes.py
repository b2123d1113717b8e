"""Hooks, sampler and MPS are killed, disks fill up: nothing stays behind, no record is torn."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Iterator

import pytest

from slurm_gpumem.devcluster import ledger
from slurm_gpumem.node import jobs
from slurm_gpumem.node.sampler import tracked_jobs
from slurm_gpumem.node.sampler.sampler import Sampler
from slurm_gpumem.node.sources.choose import choose_source
from tests.node.conftest import OTHER_USER, USER, Node, kill, left_of_daemons, needs_root, samplers_of
from tests.support.waiting import until

pytestmark = needs_root


def test_fifty_pairs_at_once_leave_nothing_behind(node: Node) -> None:
    node = node.without_haste()
    started = {job_id: _start(node, "prolog", job_id) for job_id in range(1, 51)}
    for hook in started.values():
        assert hook.wait(timeout=240) == 0
    assert {(daemon.uuid, daemon.uid) for daemon in node.mps.daemons()} == {
        (gpu.uuid, uid) for gpu in node.gpus for uid in (USER, OTHER_USER)
    }
    assert len(node.mps.daemons()) == 8
    ended = {job_id: _start(node, "epilog", job_id) for job_id in started}
    for hook in ended.values():
        assert hook.wait(timeout=240) == 0
    _assert_clean(node)
    assert len(_records(node)) == 50
    assert all(record["end"] for record in _records(node).values())


def test_jobs_that_come_and_go_at_once_never_lose_a_daemon_they_need(node: Node) -> None:
    node = node.without_haste()
    node.hook("prolog", node.env(100))
    (kept,) = node.mps.daemons()
    for hook in [_start(node, "prolog", job_id, gpu=0, uid=USER) for job_id in range(1, 9)]:
        assert hook.wait(timeout=240) == 0
    hooks = [
        _start(node, "epilog" if job_id < 9 else "prolog", job_id, gpu=0, uid=USER) for job_id in range(1, 17)
    ]
    for hook in hooks:
        assert hook.wait(timeout=240) == 0
    assert node.mps.daemons() == [kept]


def test_hooks_killed_at_random_moments_are_made_good(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(5)
    for name in ("prolog", "epilog"):
        hooks = [_start(node, name, job_id) for job_id in range(1, 13)]
        for hook in hooks:
            time.sleep(dice.random() * 0.1)  # the moment of death is the point
            os.killpg(hook.pid, signal.SIGKILL)
            hook.wait()
    for path in (node.root / "spool").glob("*.json"):
        json.loads(path.read_text())
    _ask_slurm_until_clean(node, monkeypatch)
    _assert_clean(node)


def test_an_epilog_that_is_killed_once_is_run_again(node: Node) -> None:
    node.hook("prolog", node.env(7))
    wrapper = node.root / "dies-once"
    wrapper.write_text(
        f'#!/bin/sh\n[ -e {node.root}/died ] && exec {_python(node)} "$@"\n: >{node.root}/died\nkill -9 $$\n'
    )
    wrapper.chmod(0o755)
    with open(node.hooks / "hooks.conf", "a") as file:
        file.write(f"python={wrapper}\n")
    # Without a sampler: one that runs does it itself.
    until(lambda: samplers_of(node.folder.root))
    until(lambda: not [kill(pid) for pid in samplers_of(node.folder.root)])
    assert node.hook("epilog", node.env(7)).returncode == 0
    assert (node.root / "died").exists()
    _assert_clean(node)


def test_a_killed_sampler_is_started_again_and_goes_on_from_its_peaks(node: Node) -> None:
    node = node.with_config(idle_exit_s=30.0)
    node.hook("prolog", node.env(7))
    holder = _hold(node, 5000, 7)
    try:
        until(lambda: _live_peak(node, 7) == 5000)
        (first,) = samplers_of(node.folder.root)
        os.kill(first, signal.SIGKILL)
        until(lambda: not samplers_of(node.folder.root))
    finally:
        holder.kill()
        holder.wait()
    node.hook("prolog", node.env(8))
    until(lambda: samplers_of(node.folder.root) not in ([], [first]))
    until(lambda: _live_peak(node, 8) is not None)
    assert _live_peak(node, 7) == 5000
    for job_id in (7, 8):
        node.hook("epilog", node.env(job_id))
    assert _records(node)[7]["peak_mib"] == 5000


def test_only_one_sampler_runs_and_it_ends_by_itself(node: Node) -> None:
    for hook in [_start(node, "prolog", job_id) for job_id in range(1, 6)]:
        hook.wait()
    until(lambda: node.folder.live.exists())
    until(lambda: len(samplers_of(node.folder.root)) == 1)
    for job_id in range(1, 6):
        _start(node, "epilog", job_id).wait()
    until(lambda: not samplers_of(node.folder.root))


@pytest.fixture
def small_disk(node: Node) -> Iterator[Path]:
    """A file system of 64 KiB where the spool is."""
    spool = node.config.spool
    spool.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "gpumem-test", str(spool)], check=True)
    yield spool
    subprocess.run(["umount", str(spool)], check=True)


def test_a_full_disk_fails_no_hook_and_tears_no_record(node: Node, small_disk: Path) -> None:
    node.hook("prolog", node.env(7))
    _fill(small_disk / "filler")
    assert node.hook("prolog", node.env(8)).returncode == 0
    for job_id in (7, 8):
        assert node.hook("epilog", node.env(job_id)).returncode == 0
    assert _records(node)[7]["end"] is None
    assert sorted(path.name for path in small_disk.iterdir()) == ["7.0.n1.json", "filler"]
    assert "No space left" in node.log()
    _assert_clean(node)


def test_a_state_folder_that_somebody_else_made_is_not_used(node: Node) -> None:
    stolen = node.root / "stolen"
    stolen.mkdir()
    os.chown(stolen, USER, USER)
    with open(node.hooks / "hooks.conf", "a") as file:
        file.write(f"run_dir={stolen}\n")
    assert node.hook("prolog", node.env(7)).returncode == 0
    assert not list(stolen.glob("jobs/*"))


def test_without_nvml_hooks_pass_and_nothing_is_claimed_to_be_measured(node: Node) -> None:
    text = (node.root / "gpumem.toml").read_text()
    (node.root / "gpumem.toml").write_text(
        "\n".join(line for line in text.splitlines() if "ledger" not in line)
    )
    for name in ("prolog", "epilog"):
        assert node.hook(name, node.env(7)).returncode == 0
    assert _records(node) == {}
    assert node.mps.daemons() == []
    assert "job 7 is neither limited nor recorded: no GPU is known here as 0" in node.log()


def test_hooks_that_a_site_has_turned_off_log_nothing_and_start_nothing(node: Node) -> None:
    shutil.rmtree(node.folder.root)
    node = node.with_config(mps="off")
    for name in ("prolog", "epilog"):
        assert node.hook(name, node.env(7)).returncode == 0
    assert node.log() == ""
    assert samplers_of(node.folder.root) == []


def _fill(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(handle, b"x" * 4096)
    os.close(handle)


def _start(node: Node, name: str, job_id: int, *, gpu: int = -1, uid: int = -1) -> subprocess.Popen[bytes]:
    env = node.env(
        job_id,
        gpu=str(job_id % 4 if gpu < 0 else gpu),
        uid=(USER if job_id % 8 < 4 else OTHER_USER) if uid < 0 else uid,
    )
    return subprocess.Popen([str(node.hooks / f"{name}.sh")], env=env, start_new_session=True)


def _hold(node: Node, mib: int, job_id: int) -> subprocess.Popen[bytes]:
    code = (
        "import sys, time; from pathlib import Path; sys.path.insert(0, sys.argv[3])\n"
        "from ledger import LedgerGpu\n"
        "LedgerGpu(Path(sys.argv[1]), 'n1', 0).hold(int(sys.argv[2]), 'x'); time.sleep(600)"
    )
    env = {"SLURM_JOB_ID": str(job_id)}
    shutil.copy(ledger.__file__, node.root / "ledger.py")
    command = ["/usr/bin/python3", "-c", code, str(node.config.ledger), str(mib), str(node.root)]
    return subprocess.Popen(command, env=env, user=USER, group=USER)


def _python(node: Node) -> str:
    return (node.hooks / "hooks.conf").read_text().splitlines()[0].partition("=")[2]


def _live_peak(node: Node, job_id: int) -> object:
    try:
        return json.loads(node.folder.live.read_text())["jobs"].get(str(job_id), {}).get("peak_mib")
    except (OSError, ValueError):
        return None


def _records(node: Node) -> dict[int, dict[str, object]]:
    found = (json.loads(path.read_text()) for path in node.config.spool.glob("*.json"))
    return {record["job_id"]: record for record in found}


def _ask_slurm_until_clean(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler whose Slurm says that no job is here."""
    squeue = node.root / "bin" / "squeue"
    squeue.write_text("#!/bin/sh\nexit 0\n")
    squeue.chmod(0o755)
    monkeypatch.setattr(tracked_jobs, "_SWEEP_AFTER_S", 0.0)
    node = node.with_config(slurm_bin=node.root / "bin", slurm_every_s=0.05)
    looker = Sampler(node.folder, node.config, "n1", choose_source(node.config, "n1", node.gpus), node.gpus)
    until(lambda: not looker.tick() and not node.mps.daemons())
    looker.close()


def _assert_clean(node: Node) -> None:
    until(lambda: not node.mps.daemons())  # a killed one may take a moment to go
    assert jobs.all_jobs(node.folder) == ()
    assert left_of_daemons(node.folder) == []
    assert [path.name for path in node.folder.jobs.iterdir() if not path.name.startswith(".")] == []
