"""The sampler serves prologs and epilogs: a hook hands its job over in plain shell and starts no Python.

prolog/hand_over.sh writes a request, which is a file with the hook's variables, into a folder that only root
may enter, rings a FIFO, and sleeps until we end its sleep. A thread for each user serves that user's
requests one after the other: a user's MPS daemon that hangs holds up the jobs of that user and nobody else,
nor the sampler's own work, and a burst is not slowed down by threads that take turns. No hook waits for the
spool: another thread writes the records there.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections import deque
from pathlib import Path
from typing import Deque, Dict, Mapping, NamedTuple, Optional, Set, Tuple

from slurm_gpumem.config.node import NodeConfig, load_node_config
from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.files import read_plain, remove, write_atomic
from slurm_gpumem.node import hook, jobs, processes
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.node.log import log
from slurm_gpumem.node.mailbox import Mailbox
from slurm_gpumem.node.processes import Process
from slurm_gpumem.node.spooler import Spooler

_REQUEST = re.compile(r"(?:prolog|epilog)\.[0-9]{1,10}\.[0-9]+")
_LATE = re.compile(rf"({_REQUEST.pattern})\.late")
_TAKEN = ".taken"
_MOST_BYTES = 1 << 20
_END = b"end"
_PAUSE_S = 0.05
_LAST_WORK_S = 10.0
"""A hook waits for less than this."""


class _Request(NamedTuple):
    """One that a hook waits for."""

    file: Path
    env: Dict[str, str]
    hook: Process


class HookServer:
    """Serves the hooks of this node from `start` to `close`, beside the sampler's own work."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._settings = _Settings(folder)
        self._spooler = Spooler(folder)
        self._bell = Mailbox(folder.inbox / "bell")
        self._ended = False
        self._listener = threading.Thread(target=self._listen, name="hooks", daemon=True)
        self._lock = threading.Lock()
        self._waiting: Dict[str, Deque[_Request]] = {}
        """By user, in order; there is a thread for each user that has some."""
        self._known: Set[str] = set()
        """The requests' names, from when they are found until they are served."""

    def start(self) -> None:
        """From now on hooks find us; those that the sampler before us did not live to answer, too."""
        for name in os.listdir(self._folder.inbox):
            if name.endswith(_TAKEN):
                os.rename(self._folder.inbox / name, self._folder.inbox / name[: -len(_TAKEN)])
        write_atomic(self._folder.inbox / "sampler", f"{os.getpid()}\n", mode=0o600)
        self._spooler.start()
        self._listener.start()

    def close(self) -> None:
        """Hooks that have come are served, later ones start a Python of their own."""
        remove(self._folder.inbox / "sampler")
        self._ended = True
        self._bell.wake()
        deadline = time.monotonic() + _LAST_WORK_S
        self._listener.join(_LAST_WORK_S)
        while self._known and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        self._spooler.close(_LAST_WORK_S)
        self._bell.close()

    def _listen(self) -> None:
        while True:
            try:
                self._find_requests()
                if self._ended:
                    return
                self._bell.wait(None)
            except Exception as error:  # noqa: BLE001 - one bad request must not end the service for all
                log(self._folder.root, f"requests of hooks: {type(error).__name__}: {error}")
                time.sleep(_PAUSE_S)

    def _find_requests(self) -> None:
        for name in sorted(os.listdir(self._folder.inbox)):
            late = _LATE.fullmatch(name)
            if late is not None:
                self._note_late(self._folder.inbox / name, self._folder.inbox / late[1])
            if not _REQUEST.fullmatch(name) or name in self._known:
                continue
            request = _open(self._folder.inbox / name)
            if request is None:
                continue
            whose = self._whose(request.env)
            with self._lock:
                self._known.add(name)
                first = whose not in self._waiting
                self._waiting.setdefault(whose, deque()).append(request)
            if first:
                threading.Thread(target=self._serve_user, args=(whose,), daemon=True).start()

    def _note_late(self, late: Path, request: Path) -> None:
        """Its hook gave up: a job that has started is noted; that one has ended, Slurm will say."""
        if processes.start_of(int(request.name.rpartition(".")[2])) is not None:
            return  # it has started a Python, which may still do the work
        env = _variables(late)
        remove(late)
        remove(_sleep(request))
        if env is not None and request.name.startswith("prolog"):
            hook.note_late(self._folder, self._settings.now(), env)

    def _whose(self, env: Mapping[str, str]) -> str:
        """An epilog is not told the user; its job's prolog was."""
        job_id = jobs.valid_job_id(env.get("SLURM_JOB_ID", ""))
        job = None if job_id is None or "SLURM_JOB_UID" in env else jobs.get(self._folder, job_id)
        return env.get("SLURM_JOB_UID", "") if job is None else str(job.uid)

    def _serve_user(self, whose: str) -> None:
        while True:
            with self._lock:
                if not self._waiting[whose]:
                    del self._waiting[whose]
                    return
                request = self._waiting[whose].popleft()
            self._serve(request)
            self._known.discard(request.file.name)

    def _serve(self, request: _Request) -> None:
        try:
            if processes.start_of(request.hook.pid) != request.hook.start:
                return
            # Whoever takes the file away has the job: a hook that gives up removes it.
            with contextlib.suppress(FileNotFoundError):
                os.rename(request.file, _taken(request.file))
                self._act(request)
        finally:
            _forget(request.file)
            _wake(request)

    def _act(self, request: _Request) -> None:
        name, job_id, _ = request.file.name.split(".")
        try:
            config = self._settings.now()
            try:
                (hook.epilog if name == "epilog" else hook.prolog)(self._folder, config, request.env)
            finally:
                self._spooler.put(config, request.env)
        except Exception as error:  # noqa: BLE001 - the job starts anyway
            log(self._folder.root, f"{name} of job {job_id}: {type(error).__name__}: {error}")


def _open(request: Path) -> Optional[_Request]:
    """A hook's request; None when it is still writing, or waits no more."""
    pid = int(request.name.rpartition(".")[2])
    start = processes.start_of(pid)
    if start is None:
        _forget(request)
        remove(_sleep(request))
        return None
    env = _variables(request)
    return None if env is None else _Request(request, env, Process(pid, start))


def _variables(request: Path) -> Optional[Dict[str, str]]:
    """What a hook wrote; None when that is not all of it yet."""
    try:
        *fields, end, _ = read_plain(request, most_bytes=_MOST_BYTES).data.split(b"\0")
    except (OSError, ValueError):
        return None
    pairs = (os.fsdecode(field).partition("=") for field in fields)
    return {key: value for key, _, value in pairs} if end == _END else None


def _wake(request: _Request) -> None:
    """End the hook's sleep; one that it begins later it ends itself, since its request is gone."""
    note = _sleep(request.file)
    try:
        pid = int(read_plain(note, most_bytes=16).data)
    except (OSError, ValueError):
        return
    start = processes.start_of(pid)
    if start is not None and processes.parent_of(pid) == request.hook.pid:
        processes.send(Process(pid, start), signal.SIGTERM)
    remove(note)


def _sleep(request: Path) -> Path:
    """Where the hook notes the number of its sleep."""
    return request.with_name(request.name + ".sleep")


def _taken(request: Path) -> Path:
    """Where a request lies while it is served: should we be killed, the next sampler serves it."""
    return request.with_name(request.name + _TAKEN)


def _forget(request: Path) -> None:
    for path in (_taken(request), request):
        remove(path)


class _Settings:
    """The site's settings as they are now: a hook that starts a Python reads them each time."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._stamp: Optional[Tuple[int, ...]] = None
        self._config = NodeConfig()

    def now(self) -> NodeConfig:
        path = site_config_path()
        with self._lock:
            stamp: Tuple[int, ...] = ()
            with contextlib.suppress(OSError):  # no such file: all is as by default
                about = os.stat(path)
                stamp = (about.st_mtime_ns, about.st_ino, about.st_size)
            if stamp != self._stamp:
                self._stamp, self._config = stamp, load_node_config(path)
                for note in self._config.notes:
                    log(self._folder.root, note)
            return self._config
