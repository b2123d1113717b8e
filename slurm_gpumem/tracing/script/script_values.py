"""Values of a script's variables, as its frames have them, and another one in the place of a number."""

from __future__ import annotations

import ast
import ctypes
import sys
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any, Callable, Dict

from slurm_gpumem.tracing.engine.value_dependent_code import name_of_call

PLAIN = (bool, int, float, str, type(None))
CONTAINERS = (list, tuple, set, frozenset, dict, range)


def known_in(frame: FrameType) -> Dict[str, Any]:
    """A function's variables, without keeping them: before Python 3.13 a frame that was asked for them holds
    on to their values, tensors among them, until it is asked again."""
    seen = frame.f_locals
    found = dict(seen)
    if frame.f_code.co_flags & CO_OPTIMIZED and type(seen) is dict:
        for name, value in found.items():
            if not isinstance(value, PLAIN):
                del seen[name]
    return found


def value_of(node: ast.expr, frame: FrameType) -> Any:
    """Of what is plain: numbers, names, fields of objects and dicts, lengths, sums; None of the rest."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        value = known_in(frame).get(node.id, frame.f_globals.get(node.id))
        return value if isinstance(value, (*PLAIN, *CONTAINERS)) or hasattr(value, "__dict__") else None
    if isinstance(node, ast.Attribute):
        return getattr(value_of(node.value, frame), "__dict__", {}).get(node.attr)
    if isinstance(node, ast.Subscript):
        of, key = value_of(node.value, frame), value_of(node.slice, frame)
        return of.get(key) if type(of) is dict and isinstance(key, PLAIN) else None
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        values = [value_of(part, frame) for part in node.elts]
        return None if any(value is None for value in values) else values
    if isinstance(node, ast.Call) and name_of_call(node) == "len" and len(node.args) == 1:
        of = value_of(node.args[0], frame)
        return len(of) if hasattr(type(of), "__len__") else None
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = value_of(node.left, frame), value_of(node.right, frame)
        if type(left) in (int, float) and type(right) in (int, float):
            return _ARITHMETIC[type(node.op)](left, right)
    return None


_ARITHMETIC: Dict[Any, Callable[[Any, Any], Any]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right if right else None,
    ast.FloorDiv: lambda left, right: left // right if right else None,
    ast.Pow: lambda left, right: left**right if 0 <= right < 64 and abs(left) < 1 << 16 else None,
}


def set_local(frame: FrameType, name: str, value: int) -> None:
    """Give a variable of a function another value."""
    known_in(frame)
    frame.f_locals[name] = value
    if sys.version_info < (3, 13):
        # The dict is a copy: what is in it, plain values only, goes back to the frame.
        seen = frame.f_locals
        for other, kept in list(seen.items()):
            if not isinstance(kept, PLAIN):
                del seen[other]
        seen[name] = value
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
