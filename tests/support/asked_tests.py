"""Runs chosen tests again and again, each time in a fork of a Python that has loaded torch, but no product.

python -m tests.support.asked_tests: reads a request a line (JSON), and answers it with a line when its tests
have ended. What happened in them lies in the request's file, a line each.
"""

from __future__ import annotations

import ast
import base64
import ctypes
import functools
import json
import mmap
import os
import signal
import sys
import time
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Hashable, Iterator, List, Optional, Set, Tuple

import pytest

WANTED = "not timing and not long"
"""As in `make test`."""
_SUBREAPER = 36
_MOST_NOTED = 300
"""Results of one function: a note takes longer than most of what is asked so often."""
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


class _Notes:
    """Which statements were run since the test began; also of what an earlier test left done for this one."""

    def __init__(self, file: str) -> None:
        with open(file, "r+b") as opened:
            self._ran = mmap.mmap(opened.fileno(), 0)
        self._of: Dict[Hashable, Tuple[float, bytes]] = {}
        self._said: Set[Hashable] = set()
        self.shared = 0.0
        """Seconds of what it found done."""
        self.take()

    def take(self) -> bytes:
        """Begins again from nothing."""
        self._said, self.shared = set(), 0.0
        ran, self._ran[:] = self._ran[:], bytes(len(self._ran))
        return ran

    @contextmanager
    def once(self, key: Hashable) -> Iterator[None]:
        """What is done when it is first asked for is noted for all who ask."""
        if key in self._said:
            yield
            return
        said, before, shared = set(self._said), self._ran[:], self.shared
        self.take()
        began = time.monotonic()
        try:
            yield
        finally:
            own = self._ran[:]
            if key in self._of:
                shared += self._of[key][0]
            else:
                self._of[key] = time.monotonic() - began, zlib.compress(own, 1)
            for ran in (before, zlib.decompress(self._of[key][1])):
                own = (int.from_bytes(own, "big") | int.from_bytes(ran, "big")).to_bytes(len(own), "big")
            self._ran[:], self._said, self.shared = own, {*said, key}, shared

    def forget(self, key: Hashable) -> None:
        """It is done again."""
        self._of.pop(key, None)

    def in_caches(self) -> None:
        """Of results that functions remember. Before anything of ours is imported."""
        plain = functools.lru_cache

        def lru_cache(maxsize: Any = 128, typed: bool = False) -> Any:
            def decorate(function: Any) -> Any:
                cached = plain(maxsize, typed)(function)
                keys: Set[Hashable] = set()
                if not function.__module__.startswith(("slurm_gpumem", "tests")):
                    return cached

                @functools.wraps(cached)
                def asked(*words: Any, **named: Any) -> Any:
                    key = (id(cached), words, *sorted(named.items()))
                    if key not in keys and len(keys) >= _MOST_NOTED:
                        return cached(*words, **named)
                    keys.add(key)
                    with self.once(key):
                        return cached(*words, **named)

                for name in ("cache_clear", "cache_info", "cache_parameters"):
                    setattr(asked, name, getattr(cached, name, None))
                return asked

            return lru_cache()(maxsize) if callable(maxsize) else decorate

        functools.lru_cache = lru_cache
        from tests.support import on_demand

        result = on_demand._Asked.result

        def noted(one: Any, timeout: Optional[float] = None) -> Any:
            with self.once(one):
                return result(one, timeout)

        on_demand._Asked.result = noted  # type: ignore[method-assign,assignment]


class _Plugin:
    """Asks chosen tests in their order, or all; writes what happened."""

    def __init__(self, asked: Dict[str, Any]) -> None:
        self._order = {name: number for number, name in enumerate(asked["tests"])}
        self._out = open(asked["out"], "w")  # noqa: SIM115  until the process ends
        self._notes: Optional[_Notes] = None
        self._shared: Set[Any] = set()
        if asked.get("ran"):
            self._notes = _Notes(asked["ran"])
            self._notes.in_caches()

    def _tell(self, *words: object) -> None:
        print(json.dumps(words), file=self._out, flush=True)

    def pytest_collection_modifyitems(self, items: List[Any]) -> None:
        if self._order:
            items[:] = [one for one in items if one.nodeid in self._order]
            items.sort(key=lambda one: self._order[one.nodeid])

    def pytest_collection_finish(self) -> None:
        self._told_ran("", 0.0, False)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._tell("failed", report.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._tell("failed", report.nodeid)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """What a fixture of several tests does is noted for each of them."""
        if self._notes is None or fixturedef.scope == "function":
            yield
        else:
            self._notes.forget(fixturedef)
            self._shared.add(fixturedef)
            with self._notes.once(fixturedef):
                yield

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: Any) -> None:
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            for one in self._shared.intersection(definitions):
                if self._notes is not None and one.cached_result is not None:
                    with self._notes.once(one):
                        pass

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self._tell("start", item.nodeid)
        began = time.monotonic()
        yield
        self._told_ran(
            item.nodeid, round(time.monotonic() - began, 3), item.get_closest_marker("slurm") is not None
        )

    def _told_ran(self, name: str, seconds: float, with_daemons: bool) -> None:
        if self._notes is not None:
            shared = round(self._notes.shared, 3)
            ran = base64.b64encode(zlib.compress(self._notes.take())).decode()
            self._tell("ran", name, seconds, shared, with_daemons, ran)


def _run(asked: Dict[str, Any]) -> int:
    """In the fork."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    words = ["-q", "-p", "no:cacheprovider", f"--basetemp={asked['temporary']}", "-m", WANTED]
    words += [] if asked.get("ran") else ["-x"]
    return int(pytest.main([*words, *asked["files"]], plugins=[_Plugin(asked)]))


def _ends(pid: int) -> Optional[int]:
    """Its status once it has ended; other processes that came to us end here, too."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if ended == pid:
            return status
        if not ended:
            return None


def _end_all() -> None:
    """Daemons, too: whatever a test started and left has become a child of this process, or does so now."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as opened:
            children = opened.read().split()
        if not children:
            return
        for child in children:
            os.kill(int(child), signal.SIGKILL)
            os.waitpid(int(child), 0)


def serve() -> None:
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
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
        status = None
        while status is None and time.monotonic() < until:
            time.sleep(0.01)
            status = _ends(pid)
        _end_all()
        print(json.dumps(None if status is None else os.waitstatus_to_exitcode(status)), flush=True)


if __name__ == "__main__":
    serve()
