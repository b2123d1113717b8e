"""Stages of a training that its code names and that are still to come: `size = 96 if epoch < 5 else 224`.

A trace sees the first steps. Where the script compares the variable of the loop that it is in with a number,
and what it does then may change how much memory it needs, that number tells whether the trace has come there.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from functools import lru_cache
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple, Union

from slurm_gpumem.tracing.loops_of_code import parsed

_GROWS = re.compile(
    r"size|batch|\bbs\b|resol|crop|scale_factor|depth|stage|freeze|requires_grad|grow|len|loader|rollout|unroll"
    r"|horizon|curriculum|accum",
    re.IGNORECASE,
)
"""Words in code that may change how much memory a step needs."""
_OPERATIONS = {ast.Add: "__add__", ast.Sub: "__sub__", ast.Mult: "__mul__", ast.FloorDiv: "__floordiv__",
               ast.Pow: "__pow__"}  # fmt: skip
_LARGEST_POWER = 64
_LONGEST = 60
_SAYS = re.compile(r"print|log|write|save|info|eval|valid|test|step|append|update|set_description")
"""Names of functions that do not."""
_CALL = "_call_impl"
"""Of torch's modules: loops inside of models are not the training's."""
_Loop = Union[ast.For, ast.While]


class Stage(NamedTuple):
    """A line of a script that is still to have an effect."""

    file: str
    line: int
    code: str
    variable: str
    value: int
    at: int

    def warning(self) -> str:
        """What to say of it."""
        where = f"{os.path.basename(self.file)}, line {self.line},"
        return (
            f"{where} does something else from {self.variable} = {self.at} on ({self.code}), and the trace "
            f"ended at {self.value}: if batches or the model grow there, the job needs more. Let one run be "
            "measured: gpusbatch without --trace"
        )


class _Named(NamedTuple):
    first: int
    last: int
    """Lines of the loop."""
    variable: str
    line: int
    code: str
    limits: Tuple[ast.expr, ...]


def upcoming_stages(frame: Optional[FrameType] = None) -> List[Stage]:
    """Stages of the loops that now run which have not been reached."""
    found: Dict[Tuple[str, int], Stage] = {}
    for at_work in _frames(frame or sys._getframe(1)):
        path = at_work.f_code.co_filename
        for one in _named(path):
            if not one.first <= at_work.f_lineno <= one.last:
                continue
            value = _known(at_work).get(one.variable)
            if type(value) is not int:
                continue
            later = [at for limit in one.limits for at in _numbers(limit, at_work) if at > value]
            if later:
                stage = Stage(path, one.line, one.code, one.variable, value, max(later))
                found.setdefault((path, one.line), stage)
    return list(found.values())


def _known(frame: FrameType) -> Dict[str, Any]:
    """A function's variables, without keeping them: before Python 3.13 a frame that was asked for them holds
    on to their values, tensors among them, until it is asked again."""
    seen = frame.f_locals
    found = dict(seen)
    if frame.f_code.co_flags & CO_OPTIMIZED and type(seen) is dict:
        for name, value in found.items():
            if not isinstance(value, _PLAIN):
                del seen[name]
    return found


_PLAIN = (bool, int, float, str, type(None))


def _frames(frame: FrameType) -> List[FrameType]:
    """Those of the script's training, innermost first."""
    found: List[FrameType] = []
    following: Optional[FrameType] = frame
    while following is not None:
        frame, following = following, following.f_back
        path = frame.f_code.co_filename
        if frame.f_code.co_name == _CALL:
            found.clear()
        elif "site-packages" not in path and not path.startswith("<"):
            found.append(frame)
    return found


@lru_cache(maxsize=64)
def _named(path: str) -> Tuple[_Named, ...]:
    found: List[_Named] = []
    for loop in ast.walk(parsed(path)):
        if not isinstance(loop, (ast.For, ast.While)):
            continue
        for variable in sorted(_variables(loop)):
            for node in (inner for statement in loop.body for inner in ast.walk(statement)):
                if isinstance(node, (ast.If, ast.Assign)):
                    found += _stage(loop, variable, node)
    return tuple(found)


def _stage(loop: _Loop, variable: str, node: Union[ast.If, ast.Assign]) -> Iterator[_Named]:
    asked = node.test if isinstance(node, ast.If) else node.value
    limits = tuple(limit for one in ast.walk(asked) for limit in _limits(one, variable))
    code = ast.unparse(node)
    if limits and _GROWS.search(re.sub(rf"\b{variable}\b", "", _work_of(node))):
        short = " ".join(code.split())
        short = short if len(short) <= _LONGEST else short[: _LONGEST - 1] + "…"
        yield _Named(loop.lineno, loop.end_lineno or loop.lineno, variable, node.lineno, short, limits)


def _work_of(node: Union[ast.If, ast.Assign]) -> str:
    """What code does that changes something: no messages, no breaks, no checkpoints."""
    if isinstance(node, ast.Assign):
        return ast.unparse(node)
    found = []
    for part in (inner for statement in [*node.body, *node.orelse] for inner in ast.walk(statement)):
        call = part.value.func if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call) else None
        if isinstance(part, (ast.Assign, ast.AugAssign)) or (call and not _SAYS.search(ast.unparse(call))):
            found.append(ast.unparse(part))
    return "\n".join(found)


def _variables(loop: _Loop) -> Set[str]:
    """Names that count a loop's rounds."""
    if isinstance(loop, ast.For):
        return {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    tested = {node.id for node in ast.walk(loop.test) if isinstance(node, ast.Name)}
    counted = {
        node.target.id
        for node in ast.walk(loop)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    return tested & counted


def _limits(node: ast.AST, variable: str) -> Iterator[ast.expr]:
    """What a variable is compared with; not its remainder (every tenth epoch)."""
    if not isinstance(node, ast.Compare):
        return
    sides = [node.left, *node.comparators]
    if any(isinstance(side, ast.Name) and side.id == variable for side in sides):
        yield from (side for side in sides if not isinstance(side, ast.Name) or side.id != variable)


def _numbers(limit: ast.expr, frame: FrameType) -> List[int]:
    """The numbers that an expression stands for, as far as they are plain."""
    if isinstance(limit, (ast.Tuple, ast.List, ast.Set)):
        return [number for part in limit.elts for number in _numbers(part, frame)]
    value = _value(limit, frame)
    values = value if isinstance(value, (list, tuple, set, range)) else [value]
    return [int(one) for one in values if type(one) in (int, float) and abs(one) < 1 << 62]


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Of a constant, a name, an attribute of a plain object, or whole numbers added and multiplied."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return _known(frame).get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, frame), "__dict__", {}).get(node.attr)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _value(node.left, frame), _value(node.right, frame)
        if type(left) is int and type(right) is int and _is_small(node.op, right):
            return getattr(left, _OPERATIONS[type(node.op)])(right)
    return None


def _is_small(operation: ast.operator, right: int) -> bool:
    """Whether it has a result that is soon there."""
    if isinstance(operation, ast.Pow):
        return 0 <= right < _LARGEST_POWER
    return right != 0 or not isinstance(operation, ast.FloorDiv)
