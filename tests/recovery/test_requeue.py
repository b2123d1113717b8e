"""The steps of a requeue against a controller that refuses, lies or changes its mind."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import pytest

from slurm_gpumem.config.kinds import parse_ladder
from slurm_gpumem.config.recovery import RecoveryConfig
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.decisions import Decision
from slurm_gpumem.formats.job_record import FaultEvent, JobRecord, Measurement, write_job_record
from slurm_gpumem.recovery import requeue
from slurm_gpumem.recovery.hook import lock
from slurm_gpumem.recovery.requeue import FOLDER_NAME, Book, Outcome, Requeue
from slurm_gpumem.slurm.config_show import Site
from slurm_gpumem.slurm.state.controller import Controller
from slurm_gpumem.slurm.state.queue import REQUEUED_HELD, Job
from tests.support.fake_slurm import FakeSlurm
from tests.support.kept import assert_kept
from tests.support.squeue import squeue_line

COMMENT = "gpumem/1:est=11000,req=12288,shards=12,oom=requeue gpumem-end/1:run=0,saw=oom,by=torch"
ENDED = Job(
    name="7", state="COMPLETING", reason="NonZeroExitCode", restarts=0, may_requeue=True, batch=True,
    status="1:0", het=False, priority=100, uid=1, partitions=("gpu",), request="gres/shard:12",
    comment=COMMENT, number=7, user="anna", account="phys", qos="normal",
)  # fmt: skip
NEW, OLD = Site((24, 11, 5), True, None), Site((22, 5, 8), True, None)
WHOLE = parse_ladder(["whole-gpu"])
PLAIN = RecoveryConfig(ladder=WHOLE)


HIT = FaultEvent("mps-fault", "GPU-1", 1050.0, (8,))
MEASURED = JobRecord(
    7, 0, 1, "n1", 1000.0, end=1100.0, measured=Measurement(12, True, 12288, 12000.0, events=(HIT,))
)


class OneJob:
    """A Slurm with one job, and what is done to it; `refuses` names the steps that fail.

    `forgets` are steps that are done and lost again, once each, as by a controller that crashes.
    """

    def __init__(
        self, job: Job, refuses: Tuple[str, ...] = (), lies: bool = False, forgets: Tuple[str, ...] = ()
    ) -> None:
        self.now: Optional[Job] = job
        self.refuses, self.lies, self.forgets = refuses, lies, list(forgets)
        self.done: List[str] = []
        self.said, self.restarts = "", 1
        self.gres = "gpu:a100:4,shard:a100:160\n"
        self._associations = ""
        self.limit(GrpTRES="")
        self.client = FakeSlurm(
            {
                "squeue -j 7 -t all": lambda _: "" if self.now is None else squeue_line(self.now),
                "sinfo -p gpu -o %G": lambda _: self.gres,
                "scontrol requeuehold 7": lambda _: self._do(
                    "hold", state="PENDING", reason=REQUEUED_HELD, priority=0, restarts=self.restarts
                ),
                "scontrol update JobId=7": self._update,
                "scontrol show job 7": lambda _: f"JobId=7\n   AdminComment={self.said} \n   Comment=x\n",
                "scontrol release 7": lambda _: self._do("release", reason="None", priority=90),
                "scancel 7": lambda _: self._do("cancel", state="CANCELLED"),
                "scontrol -o show assoc_mgr": lambda _: self._associations,
                "scontrol -o show partition": "PartitionName=gpu QoS=N/A\n",
            }
        )

    def limit(self, **limits: str) -> None:
        """Give the account of the job's owner a limit."""
        words = " ".join(f"{key}={value}" for key, value in limits.items())
        self._associations = (
            f"ClusterName=c Account=phys UserName= Partition= Priority=0 ID=3 ParentAccount=root(1) {words}\n"
            "ClusterName=c Account=phys UserName=anna(1) Partition= Priority=0 ID=4 ParentAccount= GrpTRES=\n"
        )

    def _update(self, argv: Sequence[str]) -> str:
        fields = dict(word.split("=", 1) for word in argv[3:])
        if "Gres" in fields:
            shown = {} if self.lies else {"request": fields["Gres"], "comment": fields["Comment"]}
            return self._do("change", **shown)
        if "AdminComment" in fields:
            self.said = fields["AdminComment"]
            return self._do("say")
        return self._do("comment", comment=fields["Comment"])

    def _do(self, step: str, **changes: object) -> str:
        self.done.append(step)
        if step in self.refuses:
            raise SlurmError(f"{step}: refused")
        assert self.now is not None
        if step in self.forgets:
            self.forgets.remove(step)
            return ""
        self.now = self.now._replace(**changes)  # type: ignore[arg-type]
        return ""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def recover(
    slurm: OneJob, state: Path, site: Site = NEW, config: RecoveryConfig = PLAIN, run: Optional[int] = None
) -> Outcome:
    there = site._replace(state=state)
    return Requeue(Controller(slurm.client), config, there, time.monotonic() + 1).recover("7", run)


@pytest.mark.parametrize(
    ("run", "limit_min", "done"),
    [
        (1, 60, ["comment", "release"]),
        (None, 60, ["comment", "release"]),
        (1, 5, ["cancel"]),
        (0, 60, ["cancel"]),
    ],
    ids=["goes on", "left by its hook", "no time left", "requeued after a cancel"],
)
def test_what_its_task_epilog_put_back_goes_on_or_is_cancelled(
    state: Path, run: Optional[int], limit_min: int, done: List[str]
) -> None:
    words = "gpumem/1:shards=12,slot=600 gpumem-end/1:run=0,saw=slot,used=590"
    slurm = OneJob(
        ENDED._replace(reason=REQUEUED_HELD, priority=0, restarts=1, limit_min=limit_min, comment=words)
    )
    recover(slurm, state, run=run)
    assert slurm.done == done
    # What was refused by its own hook is not let go by another's.
    assert recover(slurm, state).requeued == (done != ["cancel"])


def test_nobody_jumps_the_queue(state: Path) -> None:
    slurm = OneJob(ENDED)
    assert recover(slurm, state).requeued
    assert slurm.done == ["hold", "change", "release"]


@pytest.mark.parametrize(("site", "request_"), [(NEW, "gpu:1"), (OLD, "shard:40")])
def test_hold_change_release(state: Path, site: Site, request_: str) -> None:
    slurm = OneJob(ENDED)
    assert recover(slurm, state, site).requeued
    assert slurm.done == ["hold", "change", "release"]
    assert slurm.now is not None
    assert slurm.now.request == request_


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to give files away")
@pytest.mark.parametrize(
    "how", ["as root wrote it", "none", "another owner", "another job", "another run", "another user", "link"]
)
def test_no_record_but_roots_own_of_this_run_shows_that_a_neighbour_hit_it(
    state: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requeue, "_CLOSING_S", 0.0)
    slurm, spool = OneJob(ENDED._replace(comment=COMMENT.replace("saw=oom", "saw=neighbour"))), tmp_path / "s"
    write_job_record(spool, MEASURED._replace(uid=2) if how == "another user" else MEASURED)
    path = spool / "7.0.n1.json"
    if how == "none":
        path.unlink()
    elif how == "another owner":
        os.chown(path, 65534, 65534)
    elif how == "another job":
        path.rename(spool / "8.0.n1.json")
        write_job_record(spool, MEASURED._replace(job_id=9))
        (spool / "9.0.n1.json").rename(path)
    elif how == "another run":
        path.rename(spool / "7.1.n1.json")
    elif how == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    outcome = recover(slurm, state, config=RecoveryConfig(ladder=WHOLE, spool=spool))
    assert outcome.requeued is (how == "as root wrote it")


def test_a_second_run_on_the_same_job_does_nothing(state: Path) -> None:
    slurm = OneJob(ENDED)
    recover(slurm, state)
    slurm.done.clear()
    assert recover(slurm, state).requeued
    assert slurm.done == []


@pytest.mark.parametrize("lies", [False, True])
def test_a_job_that_slurm_will_not_change_is_neither_run_as_it_was_nor_cancelled_and_is_tried_again(
    state: Path, lies: bool
) -> None:
    slurm = OneJob(ENDED, refuses=() if lies else ("change",), lies=lies)
    slurm.said = "gpumem/1:was=--gres=gpu:1"
    outcome = recover(slurm, state)
    assert not outcome.requeued
    assert "stays held" in outcome.reason
    assert set(slurm.done) == {"hold", "change", "say"}
    assert not recover(slurm, state).requeued
    assert slurm.said.startswith("gpumem/1:was=--gres=gpu:1 gpumem: held; its new request was refused: ")
    assert slurm.said.count("scontrol release runs it as it was") == 1
    slurm.refuses, slurm.lies = (), False
    assert recover(slurm, state).requeued
    assert slurm.done[-2:] == ["change", "release"]


@pytest.mark.parametrize("step", ["hold", "change", "release"])
def test_a_step_that_the_controller_loses_in_a_crash_is_done_again(state: Path, step: str) -> None:
    slurm = OneJob(ENDED, forgets=(step,))
    assert recover(slurm, state).requeued
    assert slurm.done.count(step) == 2
    assert slurm.now is not None
    assert (slurm.now.request, slurm.now.restarts, slurm.now.state) == ("gpu:1", 1, "PENDING")


def test_a_hold_that_is_refused_leaves_the_job_failed(state: Path) -> None:
    slurm = OneJob(ENDED, refuses=("hold",))
    assert not recover(slurm, state).requeued
    assert slurm.now == ENDED


def test_a_job_whose_owner_edits_comment_and_request_comes_back_as_often_as_the_ladder_has_steps(
    state: Path,
) -> None:
    config = RecoveryConfig(ladder=parse_ladder(["+25%", "whole-gpu"]))
    came_back = 0
    for run in range(8):
        comment = COMMENT.replace("run=0", f"run={run}")
        slurm = OneJob(ENDED._replace(restarts=run, comment=comment))
        slurm.restarts = run + 1
        came_back += recover(slurm, state, config=config).requeued
    assert came_back == 2


def test_a_restart_for_another_reason_takes_no_step_of_the_ladder(state: Path) -> None:
    slurm = OneJob(ENDED._replace(restarts=5, comment=COMMENT.replace("run=0", "run=5")))
    slurm.restarts = 6
    assert recover(slurm, state).requeued


def test_a_job_that_its_owner_holds_with_a_forged_comment_gains_nothing(state: Path, tmp_path: Path) -> None:
    forged = COMMENT.partition(" ")[0] + ",retry=1,run=1,whole=yes"
    held = ENDED._replace(state="PENDING", reason=REQUEUED_HELD, priority=0, restarts=1)
    for comment in (forged, COMMENT):
        slurm = OneJob(held._replace(comment=comment))
        outcome = recover(slurm, state)
        assert (outcome.requeued, slurm.done) == (False, [])
        assert "not by recovery" in outcome.reason


def test_a_comment_that_its_owner_empties_in_between_leaves_no_job_held(state: Path) -> None:
    slurm = OneJob(ENDED, refuses=("change",))
    recover(slurm, state)
    assert slurm.now is not None
    slurm.now = slurm.now._replace(comment="")
    slurm.refuses = ()
    assert recover(slurm, state).requeued
    assert slurm.now.request == "gpu:1"


def test_what_was_refused_stays_refused_when_the_site_turns_recovery_on(state: Path) -> None:
    slurm = OneJob(ENDED)
    assert not recover(slurm, state, config=RecoveryConfig(ladder=WHOLE, enabled=False)).requeued
    outcome = recover(slurm, state)
    assert (outcome.requeued, slurm.done) == (False, [])
    assert "recovery.enabled" in outcome.reason


def test_what_was_begun_is_finished_when_the_site_turns_recovery_off(state: Path) -> None:
    slurm = OneJob(ENDED, refuses=("change",))
    recover(slurm, state)
    slurm.refuses = ()
    assert recover(slurm, state, config=RecoveryConfig(ladder=WHOLE, enabled=False)).requeued


@pytest.mark.parametrize("broken", ["no folder", "torn", "writable by others"])
def test_without_a_place_to_write_decisions_down_none_is_made(state: Path, broken: str) -> None:
    slurm = OneJob(ENDED)
    folder = state / FOLDER_NAME
    if broken == "no folder":
        folder.write_text("")
    else:
        folder.mkdir(mode=0o700)
        (folder / "7.json").write_text('{"schema": "gpumem-dec')
        folder.chmod(0o777 if broken == "writable by others" else 0o700)
    with pytest.raises(SlurmError):
        recover(slurm, state)
    assert slurm.done == []


def test_decisions_of_long_ago_are_removed(state: Path) -> None:
    book = Book(state)
    for name in ("7", "8_3"):
        book.write(name, Decision(0, 1.0, False, "because"))
    os.utime(state / FOLDER_NAME / "7.json", (1, 1))
    book.tidy()
    assert (book.read("7"), book.read("8_3")) == ({}, {0: Decision(0, 1.0, False, "because")})


@pytest.mark.parametrize(
    ("limits", "request_"),
    [
        ({"GrpTRES": "gres/gpu=N(0),gres/shard=N(0)"}, "gpu:1"),
        ({"GrpTRES": "gres/gpu=0(0),gres/shard=N(0)"}, "shard:40"),
        ({"GrpTRES": "gres/gpu=0(0),gres/shard=30(12)"}, "shard:30"),
        ({"GrpTRES": "gres/gpu=0(0),gres/shard=12(12)"}, None),
    ],
)
def test_the_request_is_one_that_the_limits_allow(
    state: Path, limits: Dict[str, str], request_: Optional[str]
) -> None:
    slurm = OneJob(ENDED)
    slurm.limit(**limits)
    outcome = recover(slurm, state, NEW._replace(limits=True))
    assert slurm.now is not None
    if request_ is None:
        assert outcome.reason == "more GPU memory is not allowed: GrpTRES of account phys is gres/gpu=0"
        assert slurm.now == ENDED
    else:
        assert (outcome.requeued, slurm.now.request) == (True, request_)


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
def test_everybody_else_is_left_alone(state: Path, change: Dict[str, object], reason: str) -> None:
    slurm = OneJob(ENDED._replace(**change))  # type: ignore[arg-type]
    outcome = recover(slurm, state)
    assert (outcome.requeued, slurm.done) == (False, [])
    assert reason in outcome.reason


def test_a_lock_is_one_processs_and_other_names_are_free(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from slurm_gpumem.recovery.hook import lock\n"
        "for name in ('7', '8'):\n"
        "    with lock(Path(sys.argv[1]), name) as ours: print(ours)\n"
    )
    with lock(tmp_path, "7") as ours:
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
        )
    assert ours
    assert done.stdout.split() == ["False", "True"]


def test_a_job_on_a_mig_instance_comes_back_with_the_next_larger_one(state: Path) -> None:
    comment = COMMENT.replace("shards=12", "shards=0")
    slurm = OneJob(ENDED._replace(request="gres/gpu:1g.18gb:1", comment=comment))
    slurm.gres = "gpu:1g.18gb:4,gpu:2g.35gb:1\ngpu:h200:8\n"
    outcome = recover(slurm, state, config=RecoveryConfig(ladder=parse_ladder(["+25%", "whole-gpu"])))
    assert outcome.requeued
    assert outcome.reason.endswith("at 1g.18gb: gpu:2g.35gb:1")
    assert slurm.now is not None
    assert slurm.now.request == "gpu:2g.35gb:1"


def test_a_whole_gpu_of_the_users_own_choice_still_has_no_next_step(state: Path) -> None:
    slurm = OneJob(ENDED._replace(request="gres/gpu:a100:1"))
    assert not recover(slurm, state).requeued


def test_each_walk_of_a_job_is_what_it_was(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From wherever it stands, whatever the controller refuses or loses, twice; WRITE=1 keeps a change."""
    monkeypatch.setattr(requeue, "_CLOSING_S", 0.0)
    monkeypatch.setattr(requeue, "_PAUSE_S", 0.0)
    walks: Dict[str, str] = {}
    for number in range(400):
        dice = random.Random(number)
        choose, stands = dice.choice, dice.choice(("ended", "ended", "held", "user's hold", "runs", "waits"))
        run, word = choose((0, 0, 1)), "gpumem/1:est=11000,req=12288,shards=12,oom=requeue"
        saw = choose(("oom", "oom", "oom", "slot", "neighbour", "host"))
        comment = choose((
            f"{word},slot=600 gpumem-end/1:run={run},saw={saw},used=590", f"{word}",
            f"{word},slot=600 gpumem-end/1:run={choose((run, run + 1))},saw={saw}",
            f"{'x' * 930} {word} gpumem-end/1:run={run},saw={saw}", "",
        ))  # fmt: skip
        job = ENDED._replace(
            restarts=run, limit_min=choose((None, 5, 60)), nice=choose((0, 7)), comment=comment,
            request=choose(("gres/shard:12", "gres/shard:12", "gres/gpu:1", "gres:shard:a100:12")),
        )  # fmt: skip
        if stands != "ended":
            reason = {"held": REQUEUED_HELD, "user's hold": "JobHeldUser"}.get(stands, "None")
            state_ = "RUNNING" if stands == "runs" else "PENDING"
            priority = 0 if "h" in stands[:1] or stands == "user's hold" else 90
            job = job._replace(state=state_, reason=reason, priority=priority, restarts=run + 1)
        steps = ("hold", "change", "release", "cancel", "comment", "say")
        slurm = OneJob(
            job, refuses=tuple(one for one in steps if dice.random() < 0.15), lies=dice.random() < 0.1,
            forgets=tuple(one for one in steps if dice.random() < 0.1),
        )  # fmt: skip
        slurm.restarts = run + 1
        slurm.limit(GrpTRES=choose(("", "", "gres/gpu=0(0),gres/shard=30(12)")))
        site = choose((NEW, OLD))._replace(limits=dice.random() < 0.5, weighs=dice.random() < 0.5)
        own = state / str(number)
        own.mkdir()
        told = [stands]
        for ended_run in (choose((None, run, run + 1)), None):
            # Without the job and the decision, which has a time.
            outcome = Outcome(*recover(slurm, own, site, run=ended_run)[:2])
            told.append(repr((outcome, slurm.done, slurm.now, slurm.said)))
        name = f"walks {number // 20}"
        walks[name] = walks.get(name, "") + " ".join(told) + "\n"
    assert_kept(Path(__file__).with_name("decisions.json"), walks)
