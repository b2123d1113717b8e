"""The sampler serves prologs and epilogs: a hook hands its job over in plain shell and starts no Python.

prolog/hand_over.sh writes a request, which is a file with the hook's variables, into a folder that only root
may enter, rings a FIFO, and waits for a line in a FIFO of its own. Each request is served by a thread: a
user's MPS daemon that hangs holds up the jobs of that user and nobody else, nor the sampler's own work.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import time
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from slurm_gpumem.config.node import NodeConfig, load_node_config
from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.files import read_plain, remove, write_atomic
from slurm_gpumem.node import hook
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.node.log import log
from slurm_gpumem.node.mailbox import Mailbox

_REQUEST = re.compile(r"(prolog|epilog)\.[0-9]{1,10}\.[0-9]+")
_TAKEN = ".taken"
_MOST_BYTES = 1 << 20
_END = b"end"
_LAST_WORK_S = 10.0
"""A hook waits for less than this."""


class HookServer:
    """Serves the hooks of this node from `start` to `close`, beside the sampler's own work."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._settings = _Settings(folder)
        self._bell = Mailbox(folder.inbox / "bell")
        self._ended = False
        self._listener = threading.Thread(target=self._listen, name="hooks", daemon=True)
        self._at_work: List[threading.Thread] = []

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
        for thread in self._at_work:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._bell.close()

    def _listen(self) -> None:
        while True:
            try:
                self._serve_all()
                if self._ended:
                    return
                self._bell.wait(None)
            except Exception as error:  # noqa: BLE001 - one bad request must not end the service for all
                log(self._folder.root, f"requests of hooks: {type(error).__name__}: {error}")
                time.sleep(0.1)

    def _serve_all(self) -> None:
        self._at_work = [thread for thread in self._at_work if thread.is_alive()]
        for name in sorted(os.listdir(self._folder.inbox)):
            if _REQUEST.fullmatch(name):
                taken = _take(self._folder.inbox / name)
                if taken is not None:
                    thread = threading.Thread(target=self._serve, args=(name, *taken), daemon=True)
                    self._at_work.append(thread)
                    thread.start()

    def _serve(self, name: str, env: Dict[str, str], answer: int) -> None:
        try:
            action = hook.epilog if name.startswith("epilog") else hook.prolog
            action(self._folder, self._settings.now(), env)
        except Exception as error:  # noqa: BLE001 - the job starts all the same
            log(
                self._folder.root,
                f"{name.partition('.')[0]} of job {env.get('SLURM_JOB_ID')}: {type(error).__name__}: {error}",
            )
        finally:
            _forget(self._folder.inbox / name)
            with contextlib.suppress(OSError):  # the hook has given up in the meantime
                os.write(answer, b"done\n")
            os.close(answer)


def _take(request: Path) -> Optional[Tuple[Dict[str, str], int]]:
    """The hook's variables and where to answer; None when it is still writing, or waits no more.

    Whoever takes the file away has the job: a hook that gives up removes it.
    """
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
        os.rename(request, _taken(request))
    except (OSError, ValueError):
        os.close(answer)
        return None
    pairs = (os.fsdecode(field).partition("=") for field in fields)
    return {key: value for key, _, value in pairs}, answer


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
