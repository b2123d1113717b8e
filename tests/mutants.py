"""Do the tests notice? Changes one token of the product at random, and runs the tests for it.

make mutants [N=60] [SEED=1] [ARGS="slurm_gpumem/node ..."]

First every test of `make test` runs once in a copy of the checkout whose functions note which statements
were run, by whomever; that is kept in .cache as long as neither the product nor the test's file change. Then
each change is made in a copy, one copy per core, and tests that run its statement are asked, up to three
minutes of them, until one fails; a test that fails without the change, too, does not count. A test that no
longer ends has noticed. Printed is the share that was noticed, and every change that was not. Programs that
run on a GPU only are left out.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import json
import os
import queue
import random
import re
import shutil
import subprocess
import tempfile
import threading
import time
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from tests.support.asked_tests import NOTES, marked

ROOT = Path(__file__).resolve().parents[1]
_NOTES = "slurm_gpumem/statements_run.py"
_ON_A_GPU = (
    "slurm_gpumem/site/calibration_probe.py",
    "slurm_gpumem/site/kit/mps_client.py",
    "slurm_gpumem/site/kit/training_probe.py",
)
"""gpumem sitekit runs them on one."""
_OPERATORS = {
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Lt: ("<", ">="), ast.LtE: ("<=", ">"),
    ast.Gt: (">", "<="), ast.GtE: (">=", "<"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.Add: ("+", "-"), ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
_BOUNDS = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
"""Where something is counted: other figures hardly ever meet their bound."""


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
    # What a type checker reads, and how much a function remembers.
    unseen = {
        inner
        for node in ast.walk(tree)
        for part in (
            getattr(node, "annotation", None),
            getattr(node, "returns", None),
            *getattr(node, "decorator_list", ()),
        )
        if isinstance(part, ast.AST)
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        if node in unseen:
            continue
        if isinstance(node, ast.Compare):
            for left, kind, right in zip([node.left, *node.comparators], node.ops, node.comparators):
                counts = _counts(left) or _counts(right)
                words = (_BOUNDS if counts and type(kind) in _BOUNDS else _OPERATORS)[type(kind)]
                yield from between(left, right, words)
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            yield from between(node.left, node.right, _OPERATORS[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            yield from between(node.values[0], node.values[1], _OPERATORS[type(node.op)])
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield whole(node, str(not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield whole(node, str(2 * node.value + 1))
        elif isinstance(node, ast.Return) and not _is_falsy(node.value):
            assert node.value is not None
            yield whole(node.value, "None")


def _is_falsy(node: Optional[ast.expr]) -> bool:
    """Nobody who asks whether there is something sees another nothing; numbers are changed anyway."""
    return node is None or (isinstance(node, ast.Constant) and node.value in (None, False, 0))


def _counts(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"


def _text_of_all() -> Dict[str, str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "slurm_gpumem/*.py", "tests/*.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return {name: (ROOT / name).read_text() for name in sorted(listed) if (ROOT / name).is_file()}


class Copy:
    """A copy of the checkout with a virtual environment of its own, in which one change at a time is made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seconds = time.time() - 10**6
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(folder)], check=True)
        listed = ["git", "ls-files", "-mo", "--exclude-standard"]
        for name in subprocess.run(
            listed, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
            else:
                (folder / name).unlink()
        # Programs that tests start find the copy's product without a variable.
        subprocess.run(["cp", "-al", str(ROOT / ".venv"), str(folder / ".venv")], check=True)
        for file in [
            *folder.glob(".venv/bin/*"),
            *folder.glob(".venv/lib/*/site-packages/*slurm_gpumem*.p*"),
        ]:
            here = file.read_bytes() if file.is_file() and not file.is_symlink() else b""
            if str(ROOT).encode() in here:
                mode = file.stat().st_mode
                file.unlink()
                file.write_bytes(here.replace(str(ROOT).encode(), str(folder).encode()))
                file.chmod(mode)
        self._temporary = tempfile.mkdtemp(prefix="gpumem-mutants-")
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._server = subprocess.Popen(
            [str(folder / ".venv/bin/python"), "-m", "tests.support.asked_tests"],
            cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def close(self) -> None:
        self._server.communicate()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def write(self, path: str, text: str) -> None:
        """Each time with a time of its own, so that no compiled file of an earlier text is taken."""
        (self.folder / path).write_text(text)
        self._seconds += 1
        os.utime(self.folder / path, (self._seconds, self._seconds))

    def asked(
        self, tests: List[str], files: List[str], seconds: float, ran: str = ""
    ) -> Tuple[Any, List[Any]]:
        """The exit code (None: it took longer) and what was told."""
        out = Path(self._temporary, "told")
        out.unlink(missing_ok=True)
        words = {
            "tests": tests, "files": files, "seconds": seconds, "ran": ran, "out": str(out),
            "temporary": str(Path(self._temporary, "tests")),
        }  # fmt: skip
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps(words) + "\n")
        self._server.stdin.flush()
        code = json.loads(self._server.stdout.readline())
        return code, [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


@dataclass(frozen=True)
class Ran:
    """What a test ran, and how long."""

    seconds: float
    shared: float
    """Seconds of what another test had done for it."""
    with_daemons: bool
    packed: bytes


class Runs:
    """Which statements of functions each test runs, and how long it takes."""

    def __init__(self, texts: Dict[str, str]) -> None:
        self._product = {name: text for name, text in texts.items() if name.startswith("slurm_gpumem/")}
        self._tests = {name: text for name, text in texts.items() if Path(name).name.startswith("test_")}
        self._first: Dict[str, int] = {}
        self._statements: Dict[str, List[Tuple[int, int, int]]] = {}
        count = 0
        for name, text in self._product.items():
            lines = marked(text, count, Path())[1]
            self._first[name] = count
            self._statements[name] = [(*pair, count + number) for number, pair in enumerate(lines)]
            count += len(lines)
        self._count = count
        key = hashlib.sha256(json.dumps([Ran.__doc__, self._product]).encode()).hexdigest()[:16]
        self.folder = ROOT / ".cache" / "mutants" / key
        self.folder.mkdir(parents=True, exist_ok=True)
        self.tests: Dict[str, Ran] = {}
        self._imported = bytes(count)
        """What some test's file runs when it is loaded."""

    def _kept(self, name: str) -> Path:
        return self.folder / hashlib.sha256((name + self._tests[name]).encode()).hexdigest()[:24]

    def measure(self, copies: List[Copy]) -> None:
        missing = [name for name in self._tests if not self._kept(name).exists()]
        print(f"{len(missing)} files of tests to run", flush=True)
        if missing:
            for copy in copies:
                ran = copy.folder / ".cache" / "ran"
                ran.parent.mkdir(exist_ok=True)
                ran.write_bytes(bytes(self._count))
                ran.chmod(0o666)
                which = (ran.stat().st_dev, ran.stat().st_ino)
                copy.write(_NOTES, NOTES.format(file=str(ran), which=which))
                for name, text in self._product.items():
                    copy.write(name, marked(text, self._first[name], copy.folder / _NOTES)[0])
            in_parallel(copies, missing, self._measure_one)
            for copy in copies:
                for name, text in self._product.items():
                    copy.write(name, text)
                (copy.folder / _NOTES).unlink()
        for name in self._tests:
            for _, test, seconds, shared, with_daemons, packed in json.loads(self._kept(name).read_text()):
                noted = zlib.decompress(base64.b64decode(packed))
                if test:
                    self.tests[test] = Ran(seconds, shared, with_daemons, zlib.compress(noted, 1))
                else:
                    self._imported = bytes(map(int.__or__, self._imported, noted))

    def _measure_one(self, copy: Copy, name: str) -> None:
        _, told = copy.asked([], [name], 900, str(copy.folder / ".cache" / "ran"))
        self._kept(name).write_text(json.dumps([one for one in told if one[0] == "ran"]))

    def to_ask(self, change: Change) -> List[List[str]]:
        """Tests that run the statement, first those that are short and run little else; with daemons last.

        Of what is no function's statement: those that run a statement that names it; if none does, those that
        run the module.
        """
        modules, numbers = {change.path}, self._around(change)
        if not numbers:
            modules, numbers = self._that_name(change)
        worth = self._worth(modules, numbers) or self._worth(modules, [])
        return [
            self._chosen(worth, seconds, daemons)
            for seconds, daemons in ((15.0, False), (100.0, False), (70.0, True))
        ]

    def _around(self, change: Change) -> List[int]:
        around = [one for one in self._statements[change.path] if one[0] <= change.line <= one[1]]
        return [max(around, key=lambda one: (one[0], -one[1]))[2]] if around else []

    def _that_name(self, change: Change) -> Tuple[Set[str], List[int]]:
        """The statements of functions that name what is defined here, and their modules."""
        tree = ast.parse(self._product[change.path])
        around = [
            one
            for one in ast.walk(tree)
            if isinstance(one, ast.stmt) and one.lineno <= change.line <= (one.end_lineno or 0)
        ]
        names = {
            name
            for one in around[-1:]
            for name in (
                [one.name]
                if isinstance(one, (ast.FunctionDef, ast.ClassDef))
                else [
                    part.id
                    for part in ast.walk(one)
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
                ]
            )
        }
        modules, numbers = set(), []
        for path, text in self._product.items():
            if path != change.path and f"{change.path[:-3].replace('/', '.')} import" not in text:
                continue
            for line, row in enumerate(text.splitlines(), 1):
                if names & set(re.findall(r"\w+", row)):
                    within = [one for one in self._statements[path] if one[0] <= line <= one[1]]
                    if within:
                        modules.add(path)
                        numbers.append(max(within, key=lambda one: (one[0], -one[1]))[2])
        return modules or {change.path}, numbers

    def _worth(self, modules: Set[str], numbers: List[int]) -> Dict[str, float]:
        """Tests that run one of the statements (or the modules), and how soon each should be asked.

        A test says more about these modules the less it runs of others, and costs its time; the second of
        several tests of a kind says less than the first.
        """
        spans = [(ids[0][2], ids[-1][2] + 1) for ids in map(self._statements.__getitem__, modules) if ids]
        worth = {}
        for name, test in self.tests.items():
            ran = zlib.decompress(test.packed)
            theirs = sum(ran.count(1, *span) for span in spans)
            if any(map(ran.__getitem__, numbers)) if numbers else theirs:
                worth[name] = theirs / ran.count(1) / (test.seconds + test.shared + 0.1)
        kinds: Counter[str] = Counter()
        for name in sorted(worth, key=lambda name: -worth[name]):
            kind = name.partition("[")[0]
            worth[name] *= 0.6 ** kinds[kind]
            kinds[kind] += 1
        return worth

    def _chosen(self, worth: Dict[str, float], seconds: float, with_daemons: bool) -> List[str]:
        """At least one; tests of a file together."""
        chosen: Dict[str, List[str]] = {}
        for name in sorted(worth, key=lambda name: -worth[name]):
            test, file = self.tests[name], name.partition("::")[0]
            if test.with_daemons == with_daemons:
                costs = test.seconds + (0.0 if file in chosen else test.shared + 0.3)
                if costs < seconds or not chosen:
                    seconds -= costs
                    chosen.setdefault(file, []).append(name)
        return [name for names in chosen.values() for name in names]


def in_parallel(copies: List[Copy], work: Sequence[Any], done: Callable[[Copy, Any], None]) -> None:
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for one in work:
        waiting.put(one)

    def go_on(copy: Copy) -> None:
        while True:
            try:
                one = waiting.get_nowait()
            except queue.Empty:
                return
            done(copy, one)

    threads = [threading.Thread(target=go_on, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Answers:
    """What the tests say to each change."""

    def __init__(self, runs: Runs, texts: Dict[str, str], number: int) -> None:
        self._runs = runs
        self._texts = texts
        self._number = number
        self._fails: Dict[str, bool] = {}
        """Whether tests fail without a change, too."""
        self.of: Dict[Change, str] = {}

    def ask(self, copy: Copy, change: Change) -> None:
        began = time.monotonic()
        text = self._texts[change.path]
        changed = text[: change.start] + change.new + text[change.start + len(change.old) :]
        stages = self._runs.to_ask(change)
        asked: Set[str] = set()
        answer = ""
        for tests in stages:
            left = [name for name in tests if name not in asked]
            asked.update(left)
            answer = answer or self._stage(copy, change.path, text, changed, left)
        self.of[change] = answer
        took = time.monotonic() - began
        told = answer or (f"NOT NOTICED by {len(asked)}" if asked else "NOT NOTICED: no test runs it")
        print(f"{len(self.of)} of {self._number}: {change}  {told}  {took:.0f} s", flush=True)

    def _stage(self, copy: Copy, path: str, text: str, changed: str, tests: List[str]) -> str:
        while True:
            tests = [name for name in tests if not self._fails.get(name)]
            if not tests:
                return ""
            copy.write(path, changed)
            failed = self._failed(copy, tests)
            copy.write(path, text)
            if not failed:
                return ""
            name = failed.partition(" ")[2]
            if name not in self._runs.tests:
                return failed if not self._failed(copy, tests[:1]) else "?"
            if name not in self._fails:
                self._fails[name] = bool(self._failed(copy, [name]))
            if not self._fails[name]:
                return failed

    def _failed(self, copy: Copy, tests: List[str]) -> str:
        """The first that failed or did not end."""
        files = list(dict.fromkeys(name.partition("::")[0] for name in tests))
        usual = sum(
            self._runs.tests[name].seconds + self._runs.tests[name].shared for name in tests
        ) + 2 * len(files)
        code, told = copy.asked(tests, files, 40 + 4 * usual)
        for word, name, *_ in told:
            if word == "failed":
                return f"failed {name}"
        if code is None:
            return f"hangs {[name for word, name, *_ in told if word == 'start'][-1:]}"
        return "" if code in (0, 5) else f"exits {code}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="*", default=["slurm_gpumem"])
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    texts = _text_of_all()
    wanted = tuple(path.rstrip("/") for path in options.paths)
    product = [name for name in texts if name.startswith("slurm_gpumem/") and name not in _ON_A_GPU]
    found = [one for name in product if name.startswith(wanted) for one in changes(name, texts[name])]
    drawn = random.Random(options.seed).sample(found, min(options.number, len(found)))
    runs = Runs(texts)
    with tempfile.TemporaryDirectory(prefix="copies-", dir=runs.folder.parent) as folder:
        os.chmod(folder, 0o755)  # users of jobs run its programs
        copies = [Copy(Path(folder, str(number))) for number in range(options.workers)]
        runs.measure(copies)
        answers = Answers(runs, texts, len(drawn))
        in_parallel(copies, drawn, answers.ask)
        for copy in copies:
            copy.close()
    missed = [change for change in drawn if not answers.of[change]]
    rooms = Counter(change.path.split("/")[1] for change in drawn)
    print(f"\nnoticed: {len(drawn) - len(missed)} of {len(drawn)} (seed {options.seed})")
    for room, number in sorted(rooms.items()):
        left = sum(change.path.split("/")[1] == room for change in missed)
        print(f"  {room}: {number - left} of {number}")
    for change in missed:
        print(f"  not noticed: {change}")


if __name__ == "__main__":
    main()
