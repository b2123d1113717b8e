"""epilog_slurmctld.sh by itself: whose locks it waits for, and what root leaves in SlurmUser's folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.node.conftest import REPOSITORY
from tests.recovery.conftest import OOM_LINE, install_package, needs_root

COMMENT = "gpumem/1:est=1,oom=requeue gpumem-end/1:run=0,saw=oom,by=torch"
SLOTS = ("gpumem-recovery.slot0", "gpumem-recovery.slot1")
NOBODY = 65534


@pytest.fixture
def hook(state_folder: Path) -> Path:
    """The hook with a Python that only says that it was called."""
    shutil.copy(REPOSITORY / "prolog" / "epilog_slurmctld.sh", state_folder)
    python = state_folder / "python"
    python.write_text(f"#!/bin/sh\necho called >>{state_folder}/calls\n")
    python.chmod(0o755)
    (state_folder / "state").mkdir(mode=0o700)
    (state_folder / "hooks.conf").write_text(f"python={python}\nstate_dir={state_folder}/state\n")
    return state_folder / "epilog_slurmctld.sh"


def run_hook(
    hook: Path,
    job: int = 7,
    *,
    code: str = "1:0",
    run: int = 0,
    comment: str = COMMENT,
    timeout_s: float = 30,
) -> int:
    """How often Python was called in the end; fails when the hook waits for somebody."""
    env = {"SLURM_JOB_ID": str(job), "SLURM_JOB_EXIT_CODE2": code, "SLURM_JOB_COMMENT": comment}
    env["SLURM_JOB_RESTART_COUNT"] = str(run)
    subprocess.run([str(hook)], env=env, timeout=timeout_s, check=True)
    calls = hook.parent / "calls"
    return calls.read_text().count("called") if calls.exists() else 0


def test_its_locks_are_files_that_nobody_else_can_open(hook: Path) -> None:
    assert [run_hook(hook, job) for job in (6, 7)] == [1, 2]
    found = [os.stat(hook.parent / "state" / name) for name in SLOTS]
    assert [(stat.S_IMODE(about.st_mode), about.st_uid) for about in found] == [(0o600, os.geteuid())] * 2


def test_it_waits_for_those_that_have_its_own_locks(hook: Path) -> None:
    run_hook(hook, 7)
    with open(hook.parent / "state" / SLOTS[1], "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(subprocess.TimeoutExpired):
            run_hook(hook, 7, timeout_s=1.0)
        assert run_hook(hook, 6) == 2


@needs_root
@pytest.mark.parametrize("whose", ["folder", "file"])
def test_it_waits_for_no_lock_that_somebody_else_could_hold(hook: Path, whose: str) -> None:
    state = hook.parent / "state"
    slot = state / SLOTS[1]
    slot.touch()
    os.chown(state if whose == "folder" else slot, NOBODY, NOBODY)
    with open(slot) as held, open(hook) as itself, open(hook.parent / "hooks.conf") as settings:
        for file in (held, itself, settings):
            fcntl.flock(file, fcntl.LOCK_EX)
        assert run_hook(hook, 7) == 1


def test_without_a_folder_for_them_it_works_without_locks(hook: Path) -> None:
    (hook.parent / "state").rmdir()
    assert run_hook(hook) == 1


def test_a_job_that_ended_well_costs_no_python(hook: Path) -> None:
    assert run_hook(hook, code="0:0") == 0
    assert run_hook(hook, run=1) == 0


@pytest.mark.parametrize(("run", "calls"), [(2, 0), (3, 1), (4, 1), (5, 0)])
def test_a_job_at_its_slots_end_was_requeued_before_it_ended(hook: Path, run: int, calls: int) -> None:
    comment = "gpumem/1:slot=600 gpumem-end/1:run=3,saw=slot,used=590"
    assert run_hook(hook, code="0:0", comment=comment, run=run) == calls


@needs_root
def test_what_root_decides_by_hand_belongs_to_slurmuser(state_folder: Path) -> None:
    os.chown(state_folder, NOBODY, NOBODY)
    code = (
        "import sys; from pathlib import Path\n"
        "from slurm_gpumem.formats.decisions import Decision\n"
        "from slurm_gpumem.recovery.requeue import Book, become_owner\n"
        "become_owner(Path(sys.argv[1]))\n"
        "Book(Path(sys.argv[1])).write('7', Decision(0, 1.0, False, 'because'))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(state_folder)], check=True)
    made = [state_folder / "gpumem-recovery", state_folder / "gpumem-recovery" / "7.json"]
    assert [path.stat().st_uid for path in made] == [NOBODY] * 2


def test_a_python_that_fails_while_an_upgrade_replaces_it_is_started_again(hook: Path) -> None:
    python = hook.parent / "python"
    python.write_text(python.read_text() + f"[ $(wc -l <{hook.parent}/calls) -gt 1 ]\n")
    assert run_hook(hook) == 2


def test_a_verdict_waits_for_the_end_of_an_upgrade(state_folder: Path) -> None:
    """Files of two versions do not go together; the end of the job's log stays what it was."""
    for name in ("task_epilog.sh", "log_check.sh", "let_go.sh"):
        shutil.copy(REPOSITORY / "prolog" / name, state_folder)
    python = install_package(state_folder / "python")
    comment = state_folder / "python/packages/slurm_gpumem/formats/comment.py"
    other = comment.read_text()
    comment.write_text(other.replace("def own_words", "def no_words"))
    bell, log = state_folder / "bell", state_folder / "log"
    os.mkfifo(bell)
    said = OOM_LINE + "\n"
    log.write_text(said)
    # The second try finds what the upgrade has left, however long the first one took.
    wrapper = state_folder / "waits"
    wrapper.write_text(
        f'#!/bin/sh\n{python} "$@"; code=$?\necho $code >{bell}\nread -r _ <{bell}\nexit $code\n'
    )
    wrapper.chmod(0o755)
    (state_folder / "hooks.conf").write_text(f"python={wrapper}\nsite_config={state_folder}/none\n")
    env = {"SLURM_SHARDS_ON_NODE": "5", "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": "/", "PATH": "/usr/bin:/bin"}
    with open(log, "a") as stderr:
        hook = subprocess.Popen([str(state_folder / "task_epilog.sh")], env=env, stderr=stderr)
    assert bell.read_text() == "1\n"
    assert log.read_text() == said
    comment.write_text(other)
    bell.write_text("go on\n")
    assert bell.read_text() == "0\n"
    bell.write_text("go on\n")
    assert hook.wait() == 0
    assert "gpumem: how this run ended was not noted" in log.read_text()
