"""What a traced process tells the command that started it: lines of JSON in a folder that both see."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Set, Tuple

MESSAGES, SUMMARY, CLAIM = "messages.jsonl", "summary.json", "claimed"
LAUNCHED = "GPUMEM_TRACE_LAUNCHED"
"""The variable in which a stand-in for a launcher says how many processes it would start."""
FILES = "files-"
"""Begins the names of what each process of the command read (`injected/gpumem_trace.py`)."""


class Report:
    """The traced process's side."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def say(self, **message: Any) -> None:
        """Append one message; whole lines, whoever else writes."""
        line = json.dumps({"pid": os.getpid(), **message}) + "\n"
        handle = os.open(os.path.join(self._folder, MESSAGES), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)

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
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                data = file.read(1 << 20)
        except OSError:
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
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                told = json.load(file)
            files.update(str(path) for path in told["files"])
            packages.update(str(path) for path in told["packages"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # the script wrote into our folder
    return tuple(sorted(files)), tuple(sorted(packages))
