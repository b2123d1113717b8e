"""Runs chosen tests again and again, each time in a fork of a Python that has loaded torch, but no product.

python -m tests.support.asked_tests: reads a request a line (JSON), and answers it with a line when its tests
have ended. What happened in them lies in the request's file, a line each.
"""

from __future__ import annotations

import ast
import base64
import json
import mmap
import os
import signal
import sys
import time
import zlib
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import pytest

WANTED = "not slurm and not timing and not long"
_OPENED = """
_ran_ = {{}}
try:
    from slurm_gpumem.statements_run import _ran_
except Exception:
    try:
        exec(open({notes!r}).read())
    except OSError:
        pass
"""
NOTES = """
import mmap, os
def is_it(number):
    try:
        return (os.fstat(number).st_dev, os.fstat(number).st_ino) == {which}
    except OSError:
        return False
_ran_ = {{}}
try:
    if not is_it(250):
        with open({file!r}, "r+b") as opened:
            if is_it(opened.fileno()):
                os.dup2(opened.fileno(), 250)
    if is_it(250):
        _ran_ = mmap.mmap(250, 0)
except OSError:
    pass
"""
"""slurm_gpumem/statements_run.py where statements are noted: a byte for each, shared by all processes.

A trace, which sees its own copies of files, inherits the open file.
"""


def marked(text: str, first: int, notes: Path) -> Tuple[str, List[Tuple[int, int]]]:
    """The same module, which notes each statement of a function that it runs; the lines of these."""
    lines: List[Tuple[int, int]] = []

    def mark(body: List[ast.stmt], within: bool) -> None:
        for statement in list(body):
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if within and not is_text:
                note = ast.parse(f"_ran_[{first + len(lines)}] = 1").body[0]
                lines.append((statement.lineno, statement.end_lineno or 0))
                body.insert(body.index(statement), note)
            deeper = within or isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
            for part in (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                for name in ("body", "orelse", "finalbody"):
                    mark(getattr(part, name, []), deeper)

    tree = ast.parse(text)
    mark(tree.body, False)
    head = sum(isinstance(one, ast.ImportFrom) and one.module == "__future__" for one in tree.body)
    head += ast.get_docstring(tree, clean=False) is not None
    tree.body[head:head] = ast.parse(_OPENED.format(notes=str(notes))).body
    return ast.unparse(tree), lines


class _Plugin:
    """Asks chosen tests in their order, or all; writes what happened."""

    def __init__(self, asked: Dict[str, Any]) -> None:
        self._order = {name: number for number, name in enumerate(asked["tests"])}
        self._out = open(asked["out"], "w")  # noqa: SIM115  until the process ends
        self._ran: Optional[mmap.mmap] = None
        if asked.get("ran"):
            with open(asked["ran"], "r+b") as opened:
                self._ran = mmap.mmap(opened.fileno(), 0)
                self._ran[:] = bytes(len(self._ran))

    def _tell(self, *words: object) -> None:
        print(json.dumps(words), file=self._out, flush=True)

    def pytest_collection_modifyitems(self, items: List[Any]) -> None:
        if self._order:
            items[:] = [one for one in items if one.nodeid in self._order]
            items.sort(key=lambda one: self._order[one.nodeid])

    def pytest_collection_finish(self) -> None:
        self._told_ran("", 0.0)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._tell("failed", report.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._tell("failed", report.nodeid)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self._tell("start", item.nodeid)
        began = time.monotonic()
        yield
        self._told_ran(item.nodeid, round(time.monotonic() - began, 3))

    def _told_ran(self, name: str, seconds: float) -> None:
        if self._ran is not None:
            self._tell("ran", name, seconds, base64.b64encode(zlib.compress(self._ran[:])).decode())
            self._ran[:] = bytes(len(self._ran))


def _run(asked: Dict[str, Any]) -> int:
    """In the fork."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    words = ["-q", "-p", "no:cacheprovider", f"--basetemp={asked['temporary']}", "-m", WANTED]
    words += [] if asked.get("ran") else ["-x"]
    return int(pytest.main([*words, *asked["files"]], plugins=[_Plugin(asked)]))


def serve() -> None:
    for name in ("torch", "numpy", "hypothesis", "jinja2", "sympy", "xdist"):
        __import__(name)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 3
            try:
                code = _run(asked)
            finally:
                os._exit(code)
        until = time.monotonic() + asked["seconds"]
        ended, status = 0, 0
        while not ended and time.monotonic() < until:
            time.sleep(0.01)
            ended, status = os.waitpid(pid, os.WNOHANG)
        try:
            os.killpg(pid, signal.SIGKILL)  # what its tests left, too
        except ProcessLookupError:
            pass
        if not ended:
            os.waitpid(pid, 0)
        print(json.dumps(os.WEXITSTATUS(status) if ended else None), flush=True)


if __name__ == "__main__":
    serve()
