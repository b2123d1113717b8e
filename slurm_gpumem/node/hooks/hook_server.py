"""The sampler serves prologs and epilogs: a hook hands its job over in plain shell and starts no Python.

prolog/hand_over.sh writes a request (inbox.py), rings a FIFO, and sleeps until we end its sleep. A thread for
each user serves that user's requests one after the other: a user's MPS daemon that hangs holds up the jobs of
that user and nobody else, nor the sampler's own work, and a burst is not slowed down by threads that take
turns. No hook waits for the spool: another thread writes the records there. The requests of hooks that gave
up are served, too: late, but so that the job's record is right.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import threading
import time
from collections import deque
from pathlib import Path
from typing import Deque, Dict, List, NamedTuple, Optional, Set, Tuple

from slurm_gpumem.config.node import NodeConfig, load_node_config
from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.files import read_plain, remove, write_atomic
from slurm_gpumem.node import hook, processes
from slurm_gpumem.node.hooks.inbox import Request, forget, hook_pid, is_request, read_request, sleep_note
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.node.log import log
from slurm_gpumem.node.processes import Process

# Brings records to the spool beside the work for hooks: a disk takes longer than all the rest of a hook.


_SPOOL_PAUSE_S = 0.2
"""A job that is over by then is written once, not twice."""


class _Served(NamedTuple):
    config: NodeConfig
    request: Request
    announced: bool
    """False after the epilog of a run that no prolog announced."""


class Spooler:
    """A thread that opens the records of jobs that have come, and brings closed ones to the spool.

    What it does not live to write is not lost: a job's file and its closed record are in /run, and the
    sampler writes them at its next turn.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._served: List[_Served] = []
        self._come = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)

    def start(self) -> None:
        """From now on what is put here is written."""
        self._thread.start()

    def put(self, config: NodeConfig, request: Request, *, announced: bool) -> None:
        """This hook has been served."""
        with self._lock:
            self._served.append(_Served(config, request, announced))
        self._come.set()

    def close(self, timeout_s: float) -> None:
        """Write what was put here, in this time."""
        self._ended.set()
        self._come.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._come.wait()
            self._ended.wait(_SPOOL_PAUSE_S)
            self._come.clear()
            with self._lock:
                served, self._served = self._served, []
            for config, request, announced in served:
                try:
                    if not announced:
                        hook.record_unannounced(self._folder, config, request.env, request.at)
                    hook.to_spool(self._folder, config, request.env)
                except Exception as error:  # noqa: BLE001 - one bad record must not keep back the others
                    log(self._folder.root, f"records: {type(error).__name__}: {error}")


# A FIFO by which other processes wake a daemon of ours; it is open for both ends, so that neither waits.

_READ_AT_ONCE = 65536
"""The most that Linux keeps in a pipe."""


class Mailbox:
    """Lines that others write into a FIFO; who may write is the file's `mode`.

    What comes out of one that users may write to is anybody's word: lines of any length, cut anywhere.
    """

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self._handle = _open_fifo(path, mode)
        self._cut = b""
        """The beginning of a line whose end has not come yet."""

    def wait(self, until: Optional[float]) -> List[bytes]:
        """The lines that have come, as soon as there are some; none at `until`, by the monotonic clock."""
        left = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([self._handle], [], [], left)[0]:
            return []
        data = self._cut + os.read(self._handle, _READ_AT_ONCE)
        *lines, self._cut = data.split(b"\n")
        self._cut = self._cut[:_READ_AT_ONCE]
        return lines

    def wake(self) -> None:
        """Write an empty line ourselves, so that a thread that waits looks up."""
        os.write(self._handle, b"\n")

    def close(self) -> None:
        """Nobody reads it from now on; the file stays for the next one."""
        os.close(self._handle)


def _open_fifo(path: Path, mode: int) -> int:
    """The FIFO there, made if there is none; the folder is ours, so anything else there is in the way."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            os.unlink(path)
    with contextlib.suppress(FileExistsError):  # of the sampler before us, or made by a hook
        os.mkfifo(path, mode)
    handle = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    os.fchmod(handle, mode)  # whatever the umask made of it
    return handle


_TAKEN, _LATE = ".taken", ".late"
_PAUSE_S = 0.05
_LOOK_AGAIN_S = 1.0
_LAST_WORK_S = 10.0
"""A hook waits for less than this."""


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
        self._waiting: Dict[str, Deque[Request]] = {}
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
                left = self._find_requests()
                if self._ended:
                    return
                # One whose hook still works on it itself rings no bell when that is over.
                self._bell.wait(time.monotonic() + _LOOK_AGAIN_S if left else None)
            except Exception as error:  # noqa: BLE001 - one bad request must not end the service for all
                log(self._folder.root, f"requests of hooks: {type(error).__name__}: {error}")
                time.sleep(_PAUSE_S)

    def _find_requests(self) -> bool:
        """Hand out what has come; whether something is left to be looked at again."""
        left = False
        for name in sorted(filter(is_request, os.listdir(self._folder.inbox))):
            if name in self._known:
                continue
            request = self._open(self._folder.inbox / name)
            if request is None:
                left |= name.endswith(_LATE)
                continue
            whose = request.env.get("SLURM_JOB_UID", "")
            with self._lock:
                self._known.add(name)
                first = whose not in self._waiting
                self._waiting.setdefault(whose, deque()).append(request)
            if first:
                threading.Thread(target=self._serve_user, args=(whose,), daemon=True).start()
        return left

    def _open(self, path: Path) -> Optional[Request]:
        """A request that can be served now; one whose hook was killed is removed."""
        request = read_request(path)
        late = path.name.endswith(_LATE)
        if request is None and not late and processes.start_of(hook_pid(path.name)) is None:
            forget(path)
        return request

    def _serve_user(self, whose: str) -> None:
        while True:
            with self._lock:
                if not self._waiting[whose]:
                    del self._waiting[whose]
                    return
                request = self._waiting[whose].popleft()
            self._serve(request)
            self._known.discard(request.file.name)

    def _serve(self, request: Request) -> None:
        try:
            waits = request.waits
            if waits is not None and processes.start_of(waits.pid) != waits.start:
                return
            # Whoever takes the file away has the job: a hook that gives up renames it.
            with contextlib.suppress(FileNotFoundError):
                os.rename(request.file, _taken(request.file))
                self._act(request)
        finally:
            # The hook looks for its request when it wakes up.
            remove(_taken(request.file))
            _wake(request)
            forget(request.file)

    def _act(self, request: Request) -> None:
        announced = True
        try:
            config = self._settings.now()
            try:
                if request.hook == "epilog":
                    late_at = request.at if request.waits is None else None
                    announced = hook.epilog(self._folder, config, request.env, late_at)
                elif request.waits is None:
                    hook.note_late(self._folder, config, request)
                else:
                    hook.prolog(self._folder, config, request.env)
            finally:
                self._spooler.put(config, request, announced=announced)
        except Exception as error:  # noqa: BLE001 - the job starts anyway
            told = f"{request.hook} of job {request.job_id}: {type(error).__name__}: {error}"
            log(self._folder.root, told)


def _wake(request: Request) -> None:
    """End the hook's sleep; one that it begins later it ends itself, since its request is gone."""
    try:
        pid = int(read_plain(sleep_note(request.file), most_bytes=16))
    except (OSError, ValueError):
        return
    start = processes.start_of(pid)
    if start is not None and request.waits is not None and processes.parent_of(pid) == request.waits.pid:
        processes.send(Process(pid, start), signal.SIGTERM)


def _taken(request: Path) -> Path:
    """Where a request lies while it is served: should we be killed, the next sampler serves it."""
    return request.with_name(request.name + _TAKEN)


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
