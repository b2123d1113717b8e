"""The hooks in a real Slurm: two users on one GPU, forged comments, things killed at random."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Callable, Optional

import pytest

from slurm_gpumem.node import jobs
from slurm_gpumem.node.gpus import standin_uuid
from tests.node.conftest import kill, left_of_daemons, needs_root
from tests.node.real_site import USERS, Site
from tests.support.slurm_jobs import hold_until, verified_peaks
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]


def test_two_users_share_a_gpu_and_each_is_measured_and_limited(make_site: Callable[..., Site]) -> None:
    site = make_site(idle_exit_s=1)
    go = site.root / "go-share"
    peaks = [1000.0 * number for number in range(1, 5)]
    ids = [
        site.submit(f"env | grep ^CUDA; {hold_until(go, round(peak))}", user=USERS[number % 2])
        for number, peak in enumerate(peaks)
    ]
    until(lambda: [verified_peaks(site.folder.live).get(str(job)) for job in ids] == peaks)
    assert {daemon.uid for daemon in site.mps.daemons()} == {65534, 1}
    go.touch()
    until(lambda: not site.queue())
    uuid = standin_uuid("n1", 0)
    for peak, job in zip(peaks, ids):
        assert f"CUDA_VISIBLE_DEVICES={uuid}" in site.out(job)
        assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={uuid}=8192M" in site.out(job)
        record = site.record(job)
        assert (record["peak_mib"], record["exit_code"]) == (peak, 0)
        assert (record["shards"], record["shards_verified"], record["mode"]) == (8, True, "mps")
        assert set(record["met"]) == set(ids) - {job}
    site.assert_clean()
    until(lambda: not site.samplers())


def test_a_forged_comment_is_found_out_and_the_overrun_ended(make_site: Callable[..., Site]) -> None:
    site = make_site(on_overrun="cancel", idle_exit_s=200)
    beside = site.submit("gpumem-standin --peak 500 --steps 2000 --seconds 600")
    job = site.submit(
        "gpumem-standin --peak 9000 --steps 2000 --seconds 600",
        shards=2,
        comment="gpumem/1:est=1,req=38000,shards=38",
    )
    until(lambda: [line.split()[0] for line in site.queue()] == [str(beside)])
    site.cluster.run(["scancel", str(beside)], check=True)
    until(lambda: not site.queue())
    record = site.record(job)
    assert (record["shards"], record["shards_verified"], record["limit_mib"]) == (2, True, 2048)
    assert "its comment claims 38 shards, Slurm gave 2" in record["notes"]
    assert any("2048 MiB are its shards" in note for note in record["notes"])
    site.assert_clean()
    # An Epilog is told "0:0" of a cancelled job by some Slurms; the sampler asks Slurm how it ended.
    until(lambda: site.record(job)["state"] == "CANCELLED")


def test_whatever_is_killed_the_node_stays_up_and_ends_clean(make_site: Callable[..., Site]) -> None:
    site = make_site()
    dice = random.Random(11)
    killed = submitted = 0
    while killed < 6 or site.queue():
        while submitted < 16 or (killed < 6 and not site.queue()):
            task = f"gpumem-standin --peak {dice.randrange(500, 4000)} --seconds {dice.uniform(0.2, 2):.1f}"
            site.submit(task, shards=5, user=USERS[submitted % 2])
            submitted += 1
        assert submitted < 200
        victim = _victim(site, dice)
        killed += victim is not None and kill(victim)
        time.sleep(dice.random() * 0.2)  # the moment of death is the point
    until(lambda: site.node_state() == "idle")  # from 26.05 on it stays "planned" for a while
    for path in (site.root / "records").glob("*.json"):
        json.loads(path.read_text())
    last = site.submit("true")
    until(lambda: not site.queue())
    # Whose epilog was killed twice is finished by the sampler once Slurm has forgotten the job.
    until(lambda: not jobs.all_jobs(site.folder))
    assert last
    until(lambda: not site.mps.daemons() and not left_of_daemons(site.folder))
    site.assert_clean()


def _victim(site: Site, dice: random.Random) -> Optional[int]:
    """Any process of ours: a hook's Python, the sampler, an MPS daemon."""
    found = [*site.samplers(), *(daemon.process.pid for daemon in site.mps.daemons())]
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                line = Path(f"/proc/{entry}/cmdline").read_bytes()
                if (
                    b"slurm_gpumem.node.hook" in line
                    and str(site.root).encode() in Path(f"/proc/{entry}/environ").read_bytes()
                ):
                    found.append(int(entry))
            except OSError:
                continue
    return dice.choice(found) if found else None


def test_a_job_that_cannot_be_limited_starts_and_its_record_says_so(
    make_site: Callable[..., Site],
) -> None:
    missing = "/nonexistent/nvidia-cuda-mps-control"
    site = make_site(mps_control=missing)
    job = site.submit("sleep 2; echo done")
    until(lambda: not site.queue())
    assert "done" in site.out(job)
    record = site.record(job)
    assert record["mode"] == "without_mps"
    assert record["notes"] == [f"not limited, no MPS: {missing} is not there"]
    until(lambda: site.node_state() == "idle")
