"""Code that goes one way or another by values: checks that stop a script, and loops that only values end.

Which answer a check wants ("labels in range?", "any NaN?"), and how often a loop gets the same answer.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
from functools import lru_cache
from types import FrameType
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple, Union

import torch

from slurm_gpumem.tracing.engine.recording import Recording
from slurm_gpumem.tracing.own_code import OURS

# -- Loops in a script's source that values may end, and the lines whose values decide that -----------

_HARMLESS = {"abs", "bool", "float", "int", "max", "min", "round", "sum"}
"""Functions through which a value goes on its way to a condition."""
_Loop = Union[ast.While, ast.For]


class Loop(NamedTuple):
    """Lines of a loop that decide whether it goes on."""

    tested: bool
    """Whether they are those of its condition itself."""
    only_way: bool
    """Whether nothing else ends the loop: no count of rounds, no other break or return."""
    stays: Optional[bool] = None
    """The truth with which `if ...: break` goes on; None where its code does not tell."""
    bounded: bool = False
    """Whether it ends by itself."""


def deciding_loop(path: str, line: int) -> Optional[Loop]:
    """The loop that a value which is read on this line may end; the innermost one."""
    found = [loop for first, last, loop in _lines(path) if first <= line <= last]
    return found[-1] if found else None


def parsed(path: str) -> ast.Module:
    """A file's code; nothing where there is none."""
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])  # no source, or not this Python's


def name_of_call(call: ast.Call) -> str:
    """What is called, without what it belongs to."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@lru_cache(maxsize=64)
def _lines(path: str) -> Tuple[Tuple[int, int, Loop], ...]:
    """First line, last line and loop; inner loops after outer ones."""
    found: List[Tuple[int, int, Loop]] = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.While) or (isinstance(node, ast.For) and _is_endless(node)):
            found += _of_loop(node)
        elif isinstance(node, ast.For):
            found += _breaks(node)
    return tuple(found)


def _is_endless(loop: ast.For) -> bool:
    """Whether it is over `itertools.count()`."""
    return isinstance(loop.iter, ast.Call) and name_of_call(loop.iter) == "count"


def _breaks(loop: ast.For) -> Iterator[Tuple[int, int, Loop]]:
    """Of a loop that ends by itself: where values may end it sooner."""
    for node in _own(loop):
        if isinstance(node, ast.If) and _stays(node) is not None:
            decides = Loop(tested=False, only_way=False, stays=_stays(node), bounded=True)
            yield node.test.lineno, node.test.end_lineno or node.test.lineno, decides


def _stays(guard: ast.If) -> Optional[bool]:
    """The truth of what is read with which a loop does not end here."""
    if not isinstance(guard.body[-1], ast.Break) or guard.orelse:
        return None
    negated = _negates(guard.test)
    mixed = sum(_negates(node) for node in ast.walk(guard.test)) > negated
    return None if mixed else negated


def _of_loop(loop: _Loop) -> Iterator[Tuple[int, int, Loop]]:
    test = loop.test if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant) else None
    guards = [node for node in _own(loop) if isinstance(node, ast.If) and _leaves(node)]
    ways = len(guards) + (0 if test is None else 2 if isinstance(test, ast.BoolOp) else 1)
    names: Set[str] = set().union(*(_names(guard.test) for guard in guards)) if guards else set()
    names |= set() if test is None else _names(test)
    body = list(_own(loop))
    for _ in range(2):  # converged = change < 1e-6, change = abs(now - before)
        names |= {name for node in body for name in _sources(node, names)}
    decides = Loop(tested=False, only_way=ways <= 1)
    for node in body:
        if isinstance(node, ast.If) and (node in guards or any(_sets(one, names) for one in ast.walk(node))):
            this = decides._replace(stays=_stays(node))
            yield node.test.lineno, node.test.end_lineno or node.test.lineno, this
        elif _sets(node, names):
            yield node.lineno, node.end_lineno or node.lineno, decides  # type: ignore[attr-defined]
    if test is not None and not isinstance(test, ast.BoolOp):
        yield test.lineno, test.end_lineno or test.lineno, Loop(tested=True, only_way=ways <= 1)


def _own(loop: _Loop) -> Iterator[ast.AST]:
    """Statements of a loop, without those of functions in it."""
    waiting: List[ast.AST] = list(reversed(loop.body))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
            waiting.extend(reversed(list(ast.iter_child_nodes(node))))


def _leaves(guard: ast.If) -> bool:
    return any(isinstance(node, (ast.Break, ast.Return)) for node in ast.walk(guard))


def _names(node: ast.AST) -> Set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _targets(node: ast.AST) -> Set[str]:
    if isinstance(node, ast.Assign):
        return set().union(*(_names(target) for target in node.targets))
    return _names(node.target) if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else set()


def _sets(node: ast.AST, names: Set[str]) -> bool:
    return bool(_targets(node) & names)


def _sources(node: ast.AST, names: Set[str]) -> Set[str]:
    """Names from which one of these is computed, by nothing but arithmetic."""
    value = getattr(node, "value", None)
    if not _sets(node, names) or not isinstance(value, ast.AST):
        return set()
    calls = [one for one in ast.walk(value) if isinstance(one, ast.Call)]
    plain = all(isinstance(call.func, ast.Name) and call.func.id in _HARMLESS for call in calls)
    return _names(value) - _HARMLESS if plain else set()


# -- What is answered ------------------------------------------------------------------------------

_NOT_THE_ASKER = (
    OURS,
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
)
_ROUNDS = 20
"""Equal answers after which a loop gets others; values may become known in its first rounds."""
_LONG = 500
"""The same of a loop that may have another way out, such as a largest number of rounds."""
_FEW = 4
"""The same of a loop whose rounds were seen before to leave no more memory than they found: an ODE solver
that keeps no graph is called hundreds of times in a step."""
_IN_A_ROW = 100
"""Other answers that follow each other where what is read is not the loop's condition itself."""
_RESTARTS = 1000
"""How often a loop may be entered again in one call of a function, and in one step."""
_ENDS = (0.0, float(1 << 30))
"""Numbers that end a loop which waits until one is small, or large."""


def wanted() -> Optional[bool]:
    """The truth with which the code that now reads a boolean goes on; None if either may be.

    `if bad.any(): raise …` wants False, `assert ok.all()` True.
    """
    frame = _asker()
    if frame is None:
        return None
    for first, last, truth in _checks(frame.f_code.co_filename):
        if first <= frame.f_lineno <= last:
            return truth
    return None


class EndlessLoop(RuntimeError):
    """A loop's end depends on values that a trace does not have."""


class _Rounds:
    """How often each line of one call of a function asked for an unknown value in one training step."""

    def __init__(self) -> None:
        self.asked: Dict[int, int] = {}
        self.again: Dict[int, int] = {}
        """How often all answers had been given, and the line asked again."""
        self.step = -1
        self._live: Dict[int, int] = {}
        self._flat: Dict[int, int] = {}

    def flat(self, line: int, live: Optional[int]) -> int:
        """Rounds in a row after which as many bytes were alive as before; None: that is not known."""
        same = live is not None and self._live.get(line) == live
        self._flat[line] = self._flat.get(line, 0) + 1 if same else 0
        if live is not None:
            self._live[line] = live
        return self._flat[line]

    def count(self, line: int, step: int) -> int:
        """This line asks once more."""
        if step != self.step:  # a training loop: its steps are ended otherwise
            self.asked.clear()
            self.again.clear()
            self.step = step
        self.asked[line] = self.asked.get(line, 0) + 1
        return self.asked[line]

    def restart(self, line: int) -> int:
        """The loop is entered again, or no answer ended it: as if this were the first question."""
        self.asked[line] = 1
        self.again[line] = self.again.get(line, 0) + 1
        return self.again[line]

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """A debugger that is on calls what a frame keeps; it then follows this frame no further."""


def loop_answer(recorder: Recording, guess: Any) -> Any:
    """The guess, or another answer once a loop has asked for it again and again: it ends only by values.

    Unknown values are always answered alike, so a loop that only its condition ends would never end.
    """
    frame = _asker()
    if frame is None:
        return guess
    path, line = frame.f_code.co_filename, frame.f_lineno
    loop = deciding_loop(path, line)
    if loop is None or (not loop.tested and isinstance(guess, int) and not isinstance(guess, bool)):
        return guess  # whole numbers in a loop's body are actions and indices
    if isinstance(guess, bool) and loop.stays is not None:
        guess = loop.stays  # the longer way
    if loop.bounded:
        return guess
    # Kept in the frame: its id is the next call's when it is gone, and a list of frames would keep tensors.
    if not isinstance(frame.f_trace, _Rounds):
        frame.f_trace = _Rounds()
    rounds = frame.f_trace
    asked = rounds.count(line, getattr(recorder, "step", 0))
    about = f"loop {path} {line}"
    most = _ROUNDS if loop.only_way or recorder.has_warned(about) else _LONG
    flat, kind = rounds.flat(line, getattr(recorder, "live_bytes", None)), (about, torch.is_grad_enabled())
    if kind in recorder.flat_loops and flat >= _FEW - 2:
        most = _FEW
    if asked <= most:
        return guess
    if flat >= _ROUNDS // 2:
        recorder.flat_loops.add(kind)
    ends = _ends(guess, tested=loop.tested)
    where = f"the loop at {os.path.basename(path)}, line {line},"
    if asked - most > len(ends):
        if rounds.restart(line) > _RESTARTS and loop.tested:
            raise EndlessLoop(
                f"how often {where} runs depends on values on the GPU, which a trace does not have"
            )
        return guess
    recorder.warn_once(
        about,
        f"how often {where} runs depends on values on the GPU, which a trace does not have: it was ended "
        f"after {most} rounds. Where more rounds keep more memory, let one run be measured: gpusbatch "
        "without --trace",
    )
    return ends[asked - most - 1]


def _ends(guess: Any, *, tested: bool) -> Tuple[Any, ...]:
    """Answers that may end a loop, one after the other.

    A step that is accepted or not, or the change of a number, decides over several rounds.
    """
    each = 1 if tested else _IN_A_ROW
    if isinstance(guess, bool):
        return (not guess,) * each
    return tuple(type(guess)(end) for end in _ENDS for _ in range(each))


def _asker() -> Optional[FrameType]:
    """The frame of the script or of a library that asks for a value."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_ASKER):
        frame = frame.f_back
    return frame


@lru_cache(maxsize=64)
def _checks(path: str) -> Tuple[Tuple[int, int, bool], ...]:
    """Lines of the conditions of a file that raise, and the truth with which they do not."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Assert):
            found.append(_lines_of(node.test, True))
        elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
            found.append(_lines_of(node.test, False))
    return tuple(found)


def _lines_of(test: ast.expr, good: bool) -> Tuple[int, int, bool]:
    return test.lineno, test.end_lineno or test.lineno, good != _negates(test)


def _negates(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
