"""What EpilogSlurmctld does, as SlurmUser, for one of our failed jobs.

`python -I -m slurm_gpumem.recovery.hook`: it first brings back its own job, then looks for what an
earlier run left half done. It opens no user's file and treats the comment as its owner's
wish: the most that it can lead to is one whole GPU. `gpumem recover` looks for leftovers only.
"""

from __future__ import annotations

import fcntl
import os
import sys
import syslog
import time
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Mapping, Optional, Sequence

from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.config.recovery import RecoveryConfig, load_recovery_config
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.comment import END_PREFIX
from slurm_gpumem.recovery.requeue import Book, Outcome, Requeue
from slurm_gpumem.recovery.siblings import raise_waiting
from slurm_gpumem.slurm.client import Commands
from slurm_gpumem.slurm.config_show import Site
from slurm_gpumem.slurm.state.controller import Controller
from slurm_gpumem.slurm.state.queue import job_name

# One recovery per job at a time: byte locks in one small file of SlurmUser's.
#
# The kernel drops them with the process that held them, so nothing is left behind by whoever is killed.


FILE_NAME = "gpumem-recovery.lock"
SWEEP = "sweep"
SWEEP_FILE = "gpumem-recovery.sweep"
_PAUSE_S = 0.05


@contextmanager
def lock(folder: Optional[Path], name: str, wait_s: float = 0.0) -> Iterator[bool]:
    """Whether it is ours; True as well where no file can be had, since one run alone is the rule."""
    try:
        handle = None if folder is None else os.open(folder / FILE_NAME, _FLAGS, 0o600)
    except OSError:
        handle = None
    if handle is None:
        yield True
        return
    try:
        yield _take(handle, zlib.crc32(name.encode()), time.monotonic() + wait_s)
    finally:
        os.close(handle)


def is_due(folder: Optional[Path], every_s: float) -> bool:
    """Whether the last look for leftovers was longer ago; then this is one."""
    if folder is None:
        return True
    path = folder / SWEEP_FILE
    try:
        age_s = time.time() - os.stat(path, follow_symlinks=False).st_mtime
        if 0 <= age_s < every_s:
            return False
        os.utime(path, follow_symlinks=False)
    except FileNotFoundError:
        os.close(os.open(path, _FLAGS, 0o600))
    except OSError:
        # Without a note of the last one it is done each time.
        return True
    return True


def _take(handle: int, offset: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_S)
        except OSError:
            # A file system without locks.
            return True


_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


PATIENCE_S = 25.0
"""How long a controller that restarts is waited for; less than the shell hook's own limit."""
_LOCK_S = 10.0
_SWEEP_EVERY_S = 2.0
"""Looking for leftovers asks for the whole queue: many hooks at once need not all do it."""


def main() -> int:
    """Entry point of the shell hook; 0 when there is nothing left to do."""
    config = load_recovery_config(site_config_path())
    for note in config.notes:
        log(note)
    try:
        recover_one(config, os.environ)
    except SlurmError as error:
        log(f"job {os.environ.get('SLURM_JOB_ID', '?')}: {error}")
        return 1
    return 0


def recover_one(config: RecoveryConfig, env: Mapping[str, str]) -> None:
    """The hook's own job, then what others left."""
    name = job_name(env)
    if name is None:
        return
    began = time.monotonic()
    client = Commands(config.slurm_env, config.slurm_bin)
    slurm, deadline = Controller(client), began + PATIENCE_S
    site = _site(slurm, deadline)
    with lock(site.state, name, _LOCK_S) as ours:
        if ours:
            run = int(env.get("SLURM_JOB_RESTART_COUNT") or 0)
            outcome = Requeue(slurm, config, site, deadline).recover(name, run)
            log(f"job {name}: {_outcome_text(outcome)} ({time.monotonic() - began:.2f} s)")
            if outcome.job is not None and outcome.decision is not None:
                log(raise_waiting(client, slurm, outcome.job, outcome.decision) or "")
    with lock(site.state, SWEEP) as ours:
        if ours and is_due(site.state, _SWEEP_EVERY_S):
            for line in sweep(slurm, config, site, deadline, but=name):
                log(line)


def sweep(
    slurm: Controller, config: RecoveryConfig, site: Site, deadline: float, but: Optional[str] = None
) -> Sequence[str]:
    """Finish what an earlier run was killed in; says what it did."""
    done = []
    book, requeue = Book(site.state), Requeue(slurm, config, site, deadline)
    for name in slurm.left_over(END_PREFIX):
        if name == but or time.monotonic() > deadline:
            continue
        with lock(site.state, name) as ours:
            outcome = requeue.recover(name) if ours else None
        if outcome is not None and outcome.requeued:
            done.append(f"job {name}: left half done; {_outcome_text(outcome)}")
    book.tidy()
    return done


def log(message: str) -> None:
    """One line in the system's log; silence where there is none."""
    line = " ".join(message.split())[:1000]
    if not line:
        return
    path = os.environ.get("GPUMEM_RECOVERY_LOG")
    if path:
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {line}\n")
            return
        except OSError as error:
            line = f"{line} (and {path}: {error.strerror})"
    syslog.openlog("gpumem", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_NOTICE, line)


def _site(slurm: Controller, deadline: float) -> Site:
    while True:
        try:
            return slurm.site()
        except SlurmError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def _outcome_text(outcome: Outcome) -> str:
    return f"requeued: {outcome.reason}" if outcome.requeued else f"not requeued: {outcome.reason}"


if __name__ == "__main__":
    sys.exit(main())
