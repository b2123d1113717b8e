"""`make root-code`: what runs as root by itself, file by file, and how many lines that are."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Set

ROOT = Path(__file__).resolve().parents[2]
PARTS: Dict[str, Sequence[str]] = {
    "Prolog, Epilog, sampler": ("slurm_gpumem.node.hook", "slurm_gpumem.node.sampler.__main__"),
    "gpumem collect (a timer)": ("slurm_gpumem.cli.commands.collect",),
}
SHELL = ("prolog.sh", "epilog.sh", "hand_over.sh", "let_go.sh", "build_end.sh")


def files_of(starts: Sequence[str]) -> List[Path]:
    """Every file of the package that these modules import, also later and in functions."""
    found: Set[Path] = set()
    left = list(starts)
    while left:
        module = left.pop()
        left += [module.rpartition(".")[0]] if "." in module else []
        path = _path(module)
        if path is None or path in found:
            continue
        found.add(path)
        left += _imports(ast.parse(path.read_text()))
    return sorted(found)


def lines_of(path: Path) -> int:
    """All of them, remarks and empty ones too."""
    return len(path.read_text().splitlines())


def _path(module: str) -> Optional[Path]:
    base = ROOT / module.replace(".", "/")
    return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.exists()), None)


def _imports(tree: ast.AST) -> Iterator[str]:
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            nodes += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        nodes += ast.iter_child_nodes(node)


def main() -> None:
    shell = [ROOT / "prolog" / name for name in SHELL]
    everything = set(shell)
    for what, files in [("shell", shell), *((what, files_of(starts)) for what, starts in PARTS.items())]:
        print(f"{what}: {sum(map(lines_of, files))} lines")
        print("".join(f"  {lines_of(path):4} {path.relative_to(ROOT)}\n" for path in files), end="")
        everything |= set(files)
    print(f"all, each file once: {sum(map(lines_of, everything))} lines")


if __name__ == "__main__":
    main()
