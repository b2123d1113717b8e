"""The sampler serves prologs and epilogs: a hook hands its job over in plain shell and starts no Python.

prolog/hand_over.sh writes a request, which is a file with the hook's variables, into a folder that only root
may enter, rings a FIFO, and waits for a line in a FIFO of its own. A thread for each user serves that user's
requests one after the other: a user's MPS daemon that hangs holds up the jobs of that user and nobody else,
nor the sampler's own work, and a burst is not slowed down by threads that take turns.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import time
from collections import deque
from pathlib import Path
from typing import Deque, Dict, Mapping, NamedTuple, Optional, Set, Tuple

from slurm_gpumem.config.node import NodeConfig, load_node_config
from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.files import read_plain, remove, write_atomic
from slurm_gpumem.node import hook, jobs
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.node.log import log
from slurm_gpumem.node.mailbox import Mailbox

_REQUEST = re.compile(r"(prolog|epilog)\.[0-9]{1,10}\.[0-9]+")
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
    answer: int
    """The open end of the hook's own FIFO."""


class HookServer:
    """Serves the hooks of this node from `start` to `close`, beside the sampler's own work."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._settings = _Settings(folder)
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
        action = hook.epilog if request.file.name.startswith("epilog") else hook.prolog
        try:
            # Whoever takes the file away has the job: a hook that gives up removes it.
            os.rename(request.file, _taken(request.file))
            action(self._folder, self._settings.now(), request.env)
        except FileNotFoundError as error:
            if str(error.filename) != str(request.file):
                self._log(request, error)
        except Exception as error:  # noqa: BLE001 - the job starts all the same
            self._log(request, error)
        finally:
            _forget(request.file)
            with contextlib.suppress(OSError):  # the hook has given up in the meantime
                os.write(request.answer, b"done\n")
            os.close(request.answer)

    def _log(self, request: _Request, error: Exception) -> None:
        action, job_id, _ = request.file.name.split(".")
        log(self._folder.root, f"{action} of job {job_id}: {type(error).__name__}: {error}")


def _open(request: Path) -> Optional[_Request]:
    """A hook's request; None when it is still writing, or waits no more."""
    try:
        answer = os.open(_answer(request), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT):  # nobody has it open: the hook was killed
            _forget(request)
        return None
    try:
        *fields, end, _ = read_plain(request, most_bytes=_MOST_BYTES).data.split(b"\0")
        if end != _END:
            raise ValueError("not all of it has been written")
    except (OSError, ValueError):
        os.close(answer)
        return None
    pairs = (os.fsdecode(field).partition("=") for field in fields)
    return _Request(request, {key: value for key, _, value in pairs}, answer)


def _answer(request: Path) -> Path:
    return request.with_name(request.name + ".answer")


def _taken(request: Path) -> Path:
    """Where a request lies while it is served: should we be killed, the next sampler serves it."""
    return request.with_name(request.name + _TAKEN)


def _forget(request: Path) -> None:
    for path in (_taken(request), _answer(request), request):
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
