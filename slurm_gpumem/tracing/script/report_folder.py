"""What a traced process tells the command that started it: lines of JSON in a folder that both see."""

from __future__ import annotations

import json
import os
import stat
import time
from typing import Any, Dict, List, NoReturn, Optional, Set, Tuple

MESSAGES, SUMMARY, CLAIM = "messages.jsonl", "summary.json", "claimed"
PRIVATE, CHANGED = "private.json", "changed.json"
"""How the command was kept from everything outside, and what it changed in its private copies."""
LAUNCHED = "GPUMEM_TRACE_LAUNCHED"
"""The variable in which a stand-in for a launcher says how many processes it would start."""
_LARGEST = 1 << 29
_MESSAGES_AT_ONCE = 1 << 20
FILES = "files-"
"""Begins the names of what each process of the command read (`injected/gpumem_trace.py`)."""


class Report:
    """The traced process's side."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.ranks = 1
        """Processes that train together, of which this is the first."""

    def say(self, **message: Any) -> None:
        """Append one message; whole lines, whoever else writes."""
        line = json.dumps({"pid": os.getpid(), **message}) + "\n"
        handle = os.open(os.path.join(self._folder, MESSAGES), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

    def note(self, text: str) -> None:
        """Something that the user should know."""
        self.say(note=text)

    def asked_ranks(self, ranks: int) -> None:
        """The script is to train with other processes, which are not there."""
        self.ranks = max(self.ranks, ranks)
        if ranks > 1:
            self.say(ranks=ranks)

    def used_gpus(self, gpus: int) -> None:
        """One process works on several GPUs."""
        self.say(ranks=gpus)

    def not_estimated(self, why: str) -> NoReturn:
        """What the script does next is nothing that a trace of one process shows: end here."""
        self.say(not_estimated=why)
        wait_for_the_end()

    def claim(self) -> bool:
        """Be the traced process; False where another one is already."""
        try:
            handle = os.open(os.path.join(self._folder, CLAIM), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        os.write(handle, str(os.getpid()).encode())
        os.close(handle)
        return True

    def put_summary(self, text: str) -> None:
        """The result, whole or not at all."""
        self._put(SUMMARY, text)

    def put_inference(self, text: str) -> None:
        """What a process that only called its models needs."""
        self._put(inference_file(os.getpid()), text)

    def _put(self, name: str, text: str) -> None:
        path = os.path.join(self._folder, name)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(path + ".new", path)


def wait_for_the_end() -> NoReturn:
    """Who has started the script ends its processes."""
    while True:
        time.sleep(3600)


def inference_file(pid: int) -> str:
    """The name of a process's own summary."""
    return f"inference-{pid}.json"


class Messages:
    """The command's side: reads what is new."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, MESSAGES)
        self._at = 0

    def new(self) -> List[Dict[str, Any]]:
        """Messages since the last call."""
        data = _read(self._path, self._at, _MESSAGES_AT_ONCE)
        if data is None:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        found = []
        for line in whole.splitlines():
            try:
                message = json.loads(line)
            except ValueError:
                continue  # the script wrote into our folder
            if isinstance(message, dict):
                found.append(message)
        return found


def files_read(folder: str) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    """Files that the command's Python processes read, and the folders of installed packages."""
    files: Set[str] = set()
    packages: Set[str] = set()
    for name in os.listdir(folder):
        if not name.startswith(FILES):
            continue
        told = read_json(folder, name)
        try:
            files.update(str(path) for path in told["files"])
            packages.update(str(path) for path in told["packages"])
        except (KeyError, TypeError):
            continue  # the script wrote into our folder
    return tuple(sorted(files)), tuple(sorted(packages))


def read_file(folder: str, name: str) -> Optional[bytes]:
    """A file of the folder; None where there is none, or something that is no plain file of that name."""
    return _read(os.path.join(folder, name), 0, _LARGEST)


def read_json(folder: str, name: str) -> Any:
    """What a file says; None where it says nothing."""
    data = read_file(folder, name)
    try:
        return None if data is None else json.loads(data)
    except ValueError:
        return None


def strings_in(value: Any) -> Dict[str, str]:
    """Of what was read, a table of texts."""
    return {str(key): str(text) for key, text in value.items()} if isinstance(value, dict) else {}


def _read(path: str, at: int, most: int) -> Optional[bytes]:
    """The command can put anything here: a FIFO would keep us waiting, a link lead elsewhere."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_size - at > _LARGEST:
            return None
        file.seek(at)
        return file.read(most)
