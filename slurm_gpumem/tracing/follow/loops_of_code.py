"""Loops in a script's source that values may end, and the lines in them whose values decide that."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache
from typing import Iterator, List, NamedTuple, Optional, Set, Tuple, Union

_HARMLESS = {"abs", "bool", "float", "int", "max", "min", "round", "sum"}
"""Functions through which a value goes on its way to a condition."""
_COUNT = "count"
"""`itertools.count`: a `for` loop without an end."""
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
    call = loop.iter
    if not isinstance(call, ast.Call):
        return False
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return bool(name == _COUNT)


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
    negated = isinstance(guard.test, ast.UnaryOp) and isinstance(guard.test.op, ast.Not)
    inside = guard.test.operand if isinstance(guard.test, ast.UnaryOp) and negated else guard.test
    mixed = any(isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) for node in ast.walk(inside))
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
