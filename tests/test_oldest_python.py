"""The package and its tests run on Python 3.9; a newer one that runs them here would not notice otherwise."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Iterator, List

import pytest

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 9)
TYPES = {
    "bool",
    "bytes",
    "dict",
    "float",
    "frozenset",
    "int",
    "list",
    "object",
    "set",
    "str",
    "tuple",
    "type",
}
NEWER_ARGUMENTS = {
    "zip": {"strict"},
    "dataclass": {"slots", "kw_only", "match_args", "weakref_slot"},
    "field": {"kw_only"},
}
NEWER_NAMES = {
    "contextlib": {"aclosing", "chdir"},
    "datetime": {"UTC"},
    "enum": {"StrEnum"},
    "itertools": {"pairwise", "batched"},
    "math": {"cbrt", "exp2", "sumprod"},
    "types": {"EllipsisType", "NoneType", "UnionType"},
    "typing": {"Concatenate", "LiteralString", "Never", "NotRequired", "ParamSpec", "Required", "Self",
               "TypeAlias", "TypeGuard", "Unpack", "assert_never", "assert_type", "override"},
}  # fmt: skip
NEWER_BUILTINS = {"aiter", "anext", "BaseExceptionGroup", "ExceptionGroup", "EncodingWarning"}


def too_new(text: str) -> List[str]:
    """What Python 3.9 would refuse to parse, or refuse when it runs it."""
    try:
        tree = ast.parse(text, feature_version=OLDEST)
    except SyntaxError as error:
        return [f"line {error.lineno}: {error.msg}"]
    later = _annotations(tree) if _annotations_are_text(tree) else set()
    return [
        f"line {line}: {what}" for node in ast.walk(tree) if node not in later for line, what in _newer(node)
    ]


def _annotations_are_text(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(alias.name == "annotations" for alias in node.names)
        for node in tree.body
    )


def _annotations(tree: ast.AST) -> set[ast.AST]:
    """All nodes within annotations, which nothing evaluates."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            inner = getattr(node, name, None)
            if isinstance(inner, ast.AST):
                found.update(ast.walk(inner))
    return found


def _newer(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        if any(_is_type(side) for side in (node.left, node.right)):
            yield node.lineno, "a union of types written with |"
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for word in node.keywords:
            if word.arg in NEWER_ARGUMENTS.get(name, ()):
                yield node.lineno, f"{name}({word.arg}=)"
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if alias.name in NEWER_NAMES.get(node.module or "", ()):
                yield node.lineno, f"{node.module}.{alias.name}"
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if node.attr in NEWER_NAMES.get(node.value.id, ()):
            yield node.lineno, f"{node.value.id}.{node.attr}"
        if node.attr == "bit_count":
            yield node.lineno, "int.bit_count"
    elif isinstance(node, ast.Name) and node.id in NEWER_BUILTINS:
        yield node.lineno, node.id


def _is_type(node: ast.AST) -> bool:
    return (isinstance(node, ast.Constant) and node.value is None) or (
        isinstance(node, ast.Name) and node.id in TYPES
    )


@pytest.mark.parametrize("folder", ["slurm_gpumem", "tests"])
def test_no_file_needs_a_newer_python(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    found = {str(path.relative_to(ROOT)): too_new(path.read_text(encoding="utf-8")) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}
    assert len(found) > 400


@pytest.mark.parametrize(
    "text",
    [
        "match x:\n    case 1: pass",
        "def f(x: int | None): ...",
        "Alias = int | None",
        "isinstance(x, int | str)",
        "@dataclass(slots=True)\nclass A: ...",
        "zip(a, b, strict=True)",
        "from typing import Self",
        "import datetime\ndatetime.UTC",
        "try: ...\nexcept* ValueError: ...",
        "raise ExceptionGroup('x', [])",
    ],
)
def test_what_is_too_new_is_found(text: str) -> None:
    assert too_new(text)


def test_what_is_only_text_or_only_bits_may_stay() -> None:
    assert (
        too_new("from __future__ import annotations\ndef f(x: int | None) -> str | None: return a | b") == []
    )
