"""The steps of a requeue against a controller that refuses, lies or changes its mind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import pytest

from slurm_gpumem.config.recovery import RecoveryConfig
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.recovery.locks import lock
from slurm_gpumem.recovery.requeue import Outcome, Requeue
from slurm_gpumem.slurm.config_show import Site
from slurm_gpumem.slurm.controller import Controller
from slurm_gpumem.slurm.queue import REQUEUED_HELD, Job
from tests.support.fake_slurm import FakeSlurm
from tests.support.squeue import squeue_line

COMMENT = "gpumem/1:est=11000,req=12288,shards=12,oom=requeue gpumem-end/1:run=0,saw=oom,by=torch"
ENDED = Job(
    name="7", state="COMPLETING", reason="NonZeroExitCode", restarts=0, may_requeue=True, batch=True,
    status="1:0", het=False, priority=100, nice=0, uid=1, partitions=("gpu",), request="gres/shard:12",
    comment=COMMENT,
)  # fmt: skip
NEW, OLD = Site((24, 11, 5), True, None), Site((22, 5, 8), True, None)


class OneJob:
    """A Slurm with one job, and what is done to it; `refuses` names the steps that fail."""

    def __init__(self, job: Job, refuses: Tuple[str, ...] = (), lies: bool = False) -> None:
        self.now: Optional[Job] = job
        self.refuses, self.lies = refuses, lies
        self.done: List[str] = []
        self.client = FakeSlurm(
            {
                "squeue -j 7 -t all": lambda _: "" if self.now is None else squeue_line(self.now),
                "sinfo -p gpu -o %G": "gpu:a100:4,shard:a100:160\n",
                "scontrol requeuehold 7": lambda _: self._do(
                    "hold", state="PENDING", reason=REQUEUED_HELD, priority=0, restarts=1
                ),
                "scontrol update JobId=7": self._update,
                "scontrol release 7": lambda _: self._do("release", reason="None", priority=90),
                "scancel 7": lambda _: self._do("cancel", state="CANCELLED"),
            }
        )

    def _update(self, argv: Sequence[str]) -> str:
        fields = dict(word.split("=", 1) for word in argv[3:])
        if "Gres" in fields:
            shown = {} if self.lies else {"request": fields["Gres"], "comment": fields["Comment"]}
            return self._do("change", **shown)
        if "Nice" in fields:
            return self._do("nice", nice=int(fields["Nice"]))
        return self._do("comment", comment=fields["Comment"])

    def _do(self, step: str, **changes: object) -> str:
        self.done.append(step)
        if step in self.refuses:
            raise SlurmError(f"{step}: refused")
        assert self.now is not None
        self.now = self.now._replace(**changes)  # type: ignore[arg-type]
        return ""


def recover(slurm: OneJob, site: Site = NEW, config: Optional[RecoveryConfig] = None) -> Outcome:
    chosen = RecoveryConfig() if config is None else config
    return Requeue(Controller(slurm.client), chosen, site, time.monotonic() + 1).recover("7")


def test_nobody_jumps_the_queue_unless_the_site_says_so() -> None:
    slurm = OneJob(ENDED)
    assert recover(slurm).requeued
    assert slurm.done == ["hold", "change", "release"]


@pytest.mark.parametrize(("site", "request_"), [(NEW, "gpu:1"), (OLD, "shard:40")])
def test_hold_change_release_and_only_then_the_priority(site: Site, request_: str) -> None:
    slurm = OneJob(ENDED)
    assert recover(slurm, site, RecoveryConfig(nice=-1000)).requeued
    assert slurm.done == ["hold", "change", "release", "nice"]
    assert slurm.now is not None
    assert slurm.now.request == request_


def test_a_second_run_on_the_same_job_does_nothing() -> None:
    slurm = OneJob(ENDED)
    recover(slurm)
    slurm.done.clear()
    assert recover(slurm).requeued
    assert slurm.done == []


@pytest.mark.parametrize("lies", [False, True])
def test_a_job_that_slurm_will_not_change_neither_runs_as_it_was_nor_stays_held(lies: bool) -> None:
    slurm = OneJob(ENDED, refuses=() if lies else ("change",), lies=lies)
    outcome = recover(slurm)
    assert not outcome.requeued
    assert slurm.done[-1] == "cancel"
    assert "release" not in slurm.done


def test_a_hold_that_is_refused_leaves_the_job_failed() -> None:
    slurm = OneJob(ENDED, refuses=("hold",))
    assert not recover(slurm).requeued
    assert slurm.now == ENDED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"comment": COMMENT.replace("run=0", "run=1")}, "another run"),
        ({"comment": COMMENT.replace("oom=requeue", "oom=fail")}, "owner does not want"),
        ({"comment": COMMENT.replace(",oom=requeue", "")}, "owner does not want"),
        ({"comment": COMMENT.replace("saw=oom", "saw=host")}, "nothing in it says"),
        ({"comment": COMMENT.partition(" ")[2]}, "nothing in it says"),
        ({"status": "0:0"}, "exit code"),
        ({"status": "137:0"}, "exit code"),
        ({"reason": "TimeLimit"}, "TimeLimit"),
        ({"state": "CANCELLED", "reason": "None"}, "CANCELLED"),
        ({"state": "RUNNING", "reason": "None"}, "RUNNING"),
        ({"het": True}, "heterogeneous"),
        ({"batch": False}, "batch jobs only"),
        ({"may_requeue": False}, "--no-requeue"),
        ({"request": "gres/gpu:1"}, "last step"),
        ({"request": "gres/shard:40"}, "last step"),
        ({"request": ""}, "not for one part"),
        ({"state": "PENDING", "reason": "JobHeldUser", "priority": 0, "restarts": 1}, "JobHeldUser"),
    ],
)
def test_everybody_else_is_left_alone(change: Dict[str, object], reason: str) -> None:
    slurm = OneJob(ENDED._replace(**change))  # type: ignore[arg-type]
    outcome = recover(slurm)
    assert (outcome.requeued, slurm.done) == (False, [])
    assert reason in outcome.reason


def test_a_site_that_is_off_requeues_nobody() -> None:
    slurm = OneJob(ENDED)
    assert not recover(slurm, config=RecoveryConfig(enabled=False)).requeued
    assert slurm.done == []


def test_a_lock_is_one_processs_and_other_names_are_free(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from slurm_gpumem.recovery.locks import lock\n"
        "for name in ('7', '8'):\n"
        "    with lock(Path(sys.argv[1]), name) as ours: print(ours)\n"
    )
    with lock(tmp_path, "7") as ours:
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
        )
    assert ours
    assert done.stdout.split() == ["False", "True"]
