"""Do the tests notice? Changes one token of the product at random, and runs its room's tests without daemons.

make mutants [N=60] [SEED=1] [ARGS="slurm_gpumem/node ..."]

Each change is made in a copy of the checkout, one copy per core; the first test that fails ends it. The tests
of the file's own name come first. A test that fails without the change, too, does not count. Printed is the
share that was noticed, and every change that was not.
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

ROOT = Path(__file__).resolve().parents[1]
_WITH_COMMANDS = ("submission", "report", "config")
"""Rooms whose commands' tests are theirs, too."""
_OPERATORS = {
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.Add: ("+", "-"), ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Change:
    """One token of one file."""

    path: str
    line: int
    start: int
    """In the text, in characters."""
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.old!r} -> {self.new!r}"


def changes(path: str, text: str) -> Iterator[Change]:
    """All that could be made in a file."""
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    rows = text.splitlines()

    def at(line: int, column: int) -> int:
        return lines[line - 1] + len(rows[line - 1].encode()[:column].decode())

    def between(left: ast.AST, right: ast.AST, words: Tuple[str, str]) -> Iterator[Change]:
        start, end = at(left.end_lineno, left.end_col_offset), at(right.lineno, right.col_offset)  # type: ignore[attr-defined]
        found = re.search(rf"(?<![\w]){re.escape(words[0])}(?![\w=])", text[start:end])
        if found and "#" not in text[start:end]:
            line = text.count("\n", 0, start + found.start()) + 1
            yield Change(path, line, start + found.start(), *words)

    def whole(node: ast.expr, new: str) -> Change:
        start, end = at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0)
        return Change(path, node.lineno, start, text[start:end], new)

    tree = ast.parse(text)
    types = {
        inner
        for node in ast.walk(tree)
        for name in ("annotation", "returns")
        if isinstance(getattr(node, name, None), ast.AST)
        for inner in ast.walk(getattr(node, name))
    }
    for node in ast.walk(tree):
        if node in types:
            continue
        if isinstance(node, ast.Compare):
            for left, kind, right in zip([node.left, *node.comparators], node.ops, node.comparators):
                yield from between(left, right, _OPERATORS[type(kind)])
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            yield from between(node.left, node.right, _OPERATORS[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            yield from between(node.values[0], node.values[1], _OPERATORS[type(node.op)])
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield whole(node, str(not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield whole(node, str(node.value + 1))
        elif isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
            assert node.value is not None
            yield whole(node.value, "None")


def room_of(path: str) -> List[str]:
    """Tests of the file's name first and of the folders around it, then all of its room."""
    _, *folders, name = path.split("/")
    room = Path("tests", *folders[:1])
    names = [Path(name).stem, *reversed(folders[1:])]
    tests = dict.fromkeys(test for one in names for test in sorted((ROOT / room).rglob(f"test_{one}*.py")))
    found = [str(test.relative_to(ROOT)) for test in tests]
    if not folders:
        return found or [str(one.relative_to(ROOT)) for one in sorted((ROOT / "tests").glob("test_*.py"))]
    more = [str(room)] if (ROOT / room).is_dir() else []
    return [*found, *more, *(["tests/cli"] if folders[0] in _WITH_COMMANDS else [])]


@dataclass
class Copy:
    """A copy of the checkout, in which one change at a time is made."""

    folder: Path
    seconds: float
    known: Dict[str, bool] = field(default_factory=dict)
    """Whether tests fail without a change, too."""

    @classmethod
    def made(cls, folder: Path, seconds: float) -> Copy:
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(folder)], check=True)
        listed = ["git", "ls-files", "-mo", "--exclude-standard"]
        for name in subprocess.run(
            listed, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        (folder / ".venv").symlink_to(ROOT / ".venv")
        return cls(folder, seconds)

    def answer(self, change: Change) -> str:
        """The test that noticed it; "" where none did."""
        path = self.folder / change.path
        text = path.read_text()
        path.write_text(text[: change.start] + change.new + text[change.start + len(change.old) :])
        try:
            while True:
                failed = self._failed(room_of(change.path))
                if not failed or failed == "time":
                    return failed
                changed = path.read_text()
                path.write_text(text)
                fails = self.known.setdefault(failed, bool(self._failed([failed])))
                path.write_text(changed)
                if not fails:
                    return failed
        finally:
            path.write_text(text)

    def _failed(self, tests: List[str]) -> str:
        wanted = "not slurm and not timing and not long"
        left_out = [f"--deselect={name}" for name, fails in self.known.items() if fails]
        words = [
            "-m",
            "pytest",
            "-x",
            "-q",
            "-rfE",
            "-p",
            "no:cacheprovider",
            "-m",
            wanted,
            *left_out,
            *tests,
        ]
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        asked = subprocess.Popen(
            [sys.executable, *words],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            output = asked.communicate(timeout=self.seconds)[0]
        except subprocess.TimeoutExpired:
            os.killpg(asked.pid, signal.SIGKILL)
            asked.communicate()
            return "time"
        found = _FAILED.search(output)
        if found:
            return found.group(1)
        return "" if asked.returncode in (0, 5) else f"exit code {asked.returncode}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", default=["slurm_gpumem"])
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=300.0, help="for one change")
    options = parser.parse_args()
    waiting: queue.SimpleQueue[Change] = queue.SimpleQueue()
    answers: Dict[Change, str] = {}
    with tempfile.TemporaryDirectory(prefix="gpumem-mutants-") as folder:
        copies = [Copy.made(Path(folder, str(number)), options.seconds) for number in range(options.workers)]
        root = copies[0].folder
        files = sorted(one for path in options.paths for one in (root / path).rglob("*.py"))
        found = [one for file in files for one in changes(str(file.relative_to(root)), file.read_text())]
        drawn = random.Random(options.seed).sample(found, min(options.number, len(found)))
        for one in drawn:
            waiting.put(one)

        def work(copy: Copy) -> None:
            while True:
                try:
                    change = waiting.get_nowait()
                except queue.Empty:
                    return
                answers[change] = copy.answer(change)
                told = answers[change] or "NOT NOTICED"
                print(f"{len(answers)} of {len(drawn)}: {change}  {told}", flush=True)

        threads = [threading.Thread(target=work, args=(copy,)) for copy in copies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    late = [change for change in drawn if answers[change] == "time"]
    missed = [change for change in drawn if not answers[change]]
    ended = len(drawn) - len(late)
    print(f"\nnoticed: {ended - len(missed)} of {ended} (seed {options.seed})", end="")
    print(f"; {len(late)} took longer than {options.seconds:.0f} s" if late else "")
    for change in missed:
        print(f"  not noticed: {change}")


if __name__ == "__main__":
    main()
