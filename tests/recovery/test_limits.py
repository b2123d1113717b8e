"""Limits below a whole GPU, on real daemons with slurmdbd: no job waits for what it may not have."""

from __future__ import annotations

from typing import Callable, Iterator

import pytest

from slurm_gpumem.devcluster.cluster import Cluster
from tests.recovery.conftest import OOM, Site, hurried, make_site, needs_root
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]

USER = "daemon"
"""Not nobody: for the accounting of 26.05 that is no name."""
ONCE = f'echo begins; [ "$SLURM_RESTART_COUNT" = 1 ] || {{ {OOM}; }}'


@pytest.fixture(scope="module")
def limited(make_module_cluster: Callable[..., Cluster]) -> Iterator[Site]:
    site = make_site(make_module_cluster, "AccountingStorageEnforce=limits,qos", accounting=True)
    for command in (
        ("add", "account", "top"),
        ("add", "account", "narrow", "parent=top"),
        ("add", "account", "wide"),
        ("add", "user", USER, "account=narrow"),
        ("add", "user", USER, "account=wide"),
        ("modify", "account", "top", "set", "GrpTRES=gres/shard=13,gres/gpu=0"),
        ("modify", "user", USER, "where", "account=wide", "set", "MaxTRES=gres/shard=20,gres/gpu=0"),
    ):
        site.cluster.run(["sacctmgr", "-i", *command], check=True)
    # Newer versions tell slurmctld of one after the other.
    until(lambda: "gres/shard=20" in site.cluster.run(["scontrol", "show", "assoc_mgr"]).stdout)
    with hurried(site):
        yield site


def test_a_job_gets_what_the_limits_leave_and_one_that_they_leave_nothing_stays_failed(limited: Site) -> None:
    more, narrow = (
        limited.submit(ONCE, f"--account={name}", shards=12, user=USER) for name in ("wide", "narrow")
    )
    shown = limited.ended(more, "COMPLETED")
    assert (shown["RestartCnt"], shown["tres-per-node"].removeprefix("gres")[1:]) == ("1", "shard:20")
    # 12.8 GiB were needed at least, 13 shards; that is more than it had, and all that it may have.
    assert limited.ended(narrow, "COMPLETED")["tres-per-node"].endswith("shard:13")
    full = limited.submit(f"echo begins; {OOM}", "--account=narrow", shards=13, user=USER)
    shown = limited.ended(full, "FAILED")
    assert (shown["RestartCnt"], limited.runs(full)) == ("0", 1)
    said = next(line for line in limited.log().splitlines() if f" job {full}: " in line)
    assert "not requeued: more GPU memory is not allowed: GrpTRES of account top is gres/" in said
