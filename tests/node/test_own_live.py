"""Each user's live file: their own jobs, and of the others a number and a sum."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from dataclasses import replace
from typing import Any, Dict

from slurm_gpumem.formats.comment import CommentRecord
from slurm_gpumem.node import jobs
from tests.node.conftest import OTHER_USER, USER, needs_root
from tests.node.desk import Desk


def _shared_gpu(desk: Desk) -> None:
    """Job 1 of one user beside jobs 2 and 3 of another, and job 4 on another GPU."""
    for number, uid, gpu in ((1, USER, 0), (2, OTHER_USER, 0), (3, OTHER_USER, 0), (4, OTHER_USER, 1)):
        desk.job(number, gpu=gpu, claim=CommentRecord(estimate_mib=7000, slow="1.15"))
        known = jobs.get(desk.folder, number)
        assert known is not None
        jobs.put(desk.folder, replace(known, uid=uid))
    pids = {number: desk.process(number) for number in (1, 2, 3, 4)}
    # Processes are root's here: whose they are is said by their slurmstepd on a real node.
    desk.sampler._owners.job_of = (  # type: ignore[method-assign]
        lambda pid, sluids, uids: next(number for number, known in pids.items() if known == pid)
    )
    desk.hold({pids[1]: 5000.0, pids[2]: 700.0, pids[3]: 300.0})
    desk.hold({pids[4]: 9000.0}, gpu=1)
    desk.live()


def _own(desk: Desk, uid: int) -> Dict[str, Any]:
    return json.loads(desk.folder.own_live(uid).read_text())["jobs"]  # type: ignore[no-any-return]


@needs_root
def test_a_user_sees_their_own_jobs_and_of_others_a_count_and_a_sum(desk: Desk) -> None:
    _shared_gpu(desk)
    mine = _own(desk, USER)
    assert set(mine) == {"1"}
    assert (mine["1"]["now_mib"], mine["1"]["peak_mib"], mine["1"]["estimate_mib"]) == (5000.0, 5000.0, 7000)
    assert (mine["1"]["neighbours"], mine["1"]["neighbours_mib"]) == (2, 1000.0)
    theirs = _own(desk, OTHER_USER)
    assert set(theirs) == {"2", "3", "4"}
    assert (theirs["2"]["neighbours"], theirs["2"]["neighbours_mib"]) == (2, 5300.0)
    assert (theirs["4"]["neighbours"], theirs["4"]["neighbours_mib"]) == (0, None)
    # A GPU's activity is nobody's alone: an even part of it.
    assert (mine["1"]["sm_active"], theirs["4"]["sm_active"]) == (0.1667, 0.5)


@needs_root
def test_nothing_in_it_names_another_users_job_or_user(desk: Desk) -> None:
    _shared_gpu(desk)
    mine = _own(desk, USER)["1"]
    assert not {"2", "3", "4", "user2", "user3"} & set(map(str, [*mine, *mine.values()])) - {"2"}
    assert set(mine) == {
        "gpus", "shards", "share_mib", "gpu_mib", "estimate_mib", "now_mib", "peak_mib", "sm_active",
        "neighbours", "neighbours_mib", "met", "slow", "profile",
    }  # fmt: skip


@needs_root
def test_only_root_and_that_user_read_it_and_nobody_lists_the_folder(desk: Desk) -> None:
    _shared_gpu(desk)
    path = desk.folder.own_live(USER)

    def as_user(uid: int, *argv: str) -> int:
        return subprocess.run(argv, user=uid, group=uid, extra_groups=[], capture_output=True).returncode  # type: ignore[call-overload,no-any-return]

    assert as_user(USER, "cat", str(path)) == 0
    assert as_user(OTHER_USER, "cat", str(path)) != 0
    assert as_user(USER, "cat", str(desk.folder.own_live(OTHER_USER))) != 0
    assert as_user(USER, "sh", "-c", f"echo x >> {path}") != 0
    assert as_user(USER, "rm", "-f", str(path)) != 0
    assert as_user(USER, "ls", str(desk.folder.own)) != 0
    assert path.stat().st_uid == 0
    assert stat.S_IMODE(os.stat(desk.folder.own).st_mode) == 0o711


@needs_root
def test_a_users_file_goes_with_their_last_job_and_all_go_with_the_sampler(desk: Desk) -> None:
    _shared_gpu(desk)
    jobs.drop(desk.folder, 1)
    desk.live()
    assert not desk.folder.own_live(USER).exists()
    assert desk.folder.own_live(OTHER_USER).exists()
    # One that was killed leaves files, which the next one knows of.
    again = desk.new_sampler()
    again.close()
    assert list(desk.folder.own.iterdir()) == []
