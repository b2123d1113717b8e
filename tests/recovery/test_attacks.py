"""Users who play with recovery, on real daemons: nothing they write, print or lock gains or breaks anything.

The spool of these tests is shared with the controller.
"""

from __future__ import annotations

import pwd
import subprocess
import time
from typing import Iterator

import pytest

from tests.recovery.conftest import OOM, RECORD, Site, needs_root
from tests.support.waiting import until

pytestmark = [needs_root, pytest.mark.slurm]

NOBODY = "nobody"
ONCE = f'echo begins; [ "$SLURM_RESTART_COUNT" = 1 ] || {{ {OOM}; }}'
LOCKER = """
import fcntl, os, sys, time
held = []
for folder in sys.argv[1:]:
    for where, _, names in os.walk(folder):
        for name in [".", *names]:
            for flags in (os.O_RDWR, os.O_RDONLY):
                try:
                    handle = os.open(os.path.join(where, name), flags | os.O_NONBLOCK)
                except OSError:
                    continue
                for take in (lambda: fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB),
                             lambda: fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)):
                    try:
                        take()
                    except OSError:
                        pass
                held.append(handle)
print(len(held), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def locked_files(module_site: Site) -> Iterator[int]:
    """Another user holds locks on everything of ours that they can open; how many files that is."""
    user = pwd.getpwnam(NOBODY)
    folders = [str(module_site.root / "hooks"), str(module_site.cluster.layout.controller)]
    process = subprocess.Popen(
        ["/usr/bin/python3", "-c", LOCKER, *folders],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=user.pw_uid, group=user.pw_gid,
        extra_groups=[], cwd="/",
    )  # fmt: skip
    assert process.stdout is not None
    yield int(process.stdout.readline())
    process.communicate()


def test_a_user_who_locks_every_file_they_can_open_does_not_stop_recovery(
    module_site: Site, locked_files: int
) -> None:
    assert locked_files > 3  # the hooks themselves among them
    jobs = [module_site.submit(ONCE) for _ in range(3)]
    # A hook that waited for those locks would give up after 50 s.
    for job in jobs:
        until(lambda job=job: f" job {job}: requeued: " in module_site.log())
    for job in jobs:
        assert module_site.ended(job, "COMPLETED")["RestartCnt"] == "1"


def test_an_edited_comment_and_request_bring_no_job_back_more_often_than_the_ladder_has_steps(
    module_site: Site,
) -> None:
    site = module_site
    site.configure(ladder=["+25%", "whole-gpu"])
    fresh = RECORD.format(shards=2, oom="requeue")
    # Its owner takes out of the comment what was counted, while it runs, and makes the request small again
    # whenever it waits.
    job = site.submit(
        f'echo begins; scontrol update JobId=$SLURM_JOB_ID Comment="{fresh}"; {OOM}', shards=2, comment=fresh
    )
    deadline = time.monotonic() + 300
    try:
        while site.show(job).get("State") != "FAILED":
            assert time.monotonic() < deadline, site.log()
            if site.show(job).get("State") == "PENDING" and site.runs(job):
                site.cluster.run(
                    ["scontrol", "update", f"JobId={job}", "Gres=shard:2", f"Comment={fresh}"], user=NOBODY
                )
            time.sleep(0.2)
        assert site.runs(job) <= 3
        assert int(site.show(job)["RestartCnt"]) <= 2
        assert "the ladder's last step" in site.log().splitlines()[-1]
    finally:
        site.configure()
