"""`gpumem docs [PAGE]`: the documentation that ships with the package, for a terminal without a network."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.data import data_path
from slurm_gpumem.errors import UnknownNameError
from slurm_gpumem.terminal.colour import palette
from slurm_gpumem.terminal.say import say


def show(text: str) -> None:
    """Print it; on a terminal with $PAGER, or less, which leaves a text that fits on the screen."""
    command = shlex.split(os.environ.get("PAGER", "less"))
    if not sys.stdout.isatty() or not command or shutil.which(command[0]) is None:
        print(text)
        return
    env = {**os.environ, "LESS": os.environ.get("LESS", "FRX"), "LESSCHARSET": "utf-8"}
    pager = subprocess.Popen(command, stdin=subprocess.PIPE, env=env)
    try:
        pager.communicate(f"{text}\n".encode())
    except BrokenPipeError:
        pass  # left before the end
    except KeyboardInterrupt:
        # less keeps the terminal until it is left; without us the shell would read beside it.
        pager.wait()


_READERS = {
    "user": "for researchers",
    "admin": "for admins",
    "": "how it works, and how well",
    "developer": "for developers",
}
"""Folders in the order in which a name is looked for, and whom each is for."""
_LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)\)")
_COMMENT = re.compile(r"^<!--.*?-->\n?", re.MULTILINE | re.DOTALL)


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    pages = _pages()
    if args.page is None:
        show("\n".join([*_listed(pages), "", "gpumem docs PAGE shows one; its name alone will do."]))
        return 0
    name = args.page.removeprefix("docs/").removesuffix(".md")
    found = [page for page in pages if name in (page, page.rpartition("/")[2])]
    if not found:
        short = [page.rpartition("/")[2] for page in pages]
        names = [page if short.count(name) > 1 else name for page, name in zip(pages, short)]
        raise UnknownNameError("page", args.page, names)
    colours = palette()
    text = readable(pages[found[0]].read_text(encoding="utf-8"), found[0])
    show("\n".join(colours.bold(line) if line.startswith("#") else line for line in text.split("\n")))
    for other in found[1:]:
        say(f"that was {found[0]}; {other} ({_READERS[other.rpartition('/')[0]]}) has the same name")
    return 0


def readable(text: str, page: str) -> str:
    """A page as people read it on a terminal: without comments, links as names of pages."""
    return _LINK.sub(lambda match: _link(match, page), _COMMENT.sub("", text)).rstrip()


def _link(match: re.Match[str], page: str) -> str:
    text, target = match.groups()
    target = target.partition("#")[0]
    if not target.endswith(".md") or target.startswith("http"):
        return match[0] if target.startswith("http") else text
    path = Path("/", page).parent / target
    # Resolved by words alone: the pages may lie behind a link.
    parts: List[str] = []
    for part in path.parts[1:]:
        parts = parts[:-1] if part == ".." else [*parts, part]
    name = "/".join(parts).removesuffix(".md")
    bare = text.removesuffix(".md")
    return bare if bare == name else f"{bare} ({name})" if bare != name.rpartition("/")[2] else name


def _pages() -> Dict[str, Path]:
    """Every page by its name: user/trace, admin/node, accuracy."""
    return {
        f"{folder}/{path.stem}".lstrip("/"): path
        for folder in _READERS
        for path in sorted(data_path("docs", folder).glob("*.md"))
    }


def _listed(pages: Dict[str, Path]) -> List[str]:
    width = max(map(len, pages), default=0)
    lines: List[str] = []
    for folder, reader in _READERS.items():
        here = [name for name in pages if name.rpartition("/")[0] == folder]
        lines += ["", reader] if lines else [reader]
        lines += [f"  {name:<{width}}  {_title(pages[name])}" for name in here]
    return lines


def _title(path: Path) -> str:
    with open(path, encoding="utf-8") as file:
        lines = (line for line in file if line.startswith("# "))
        return next(lines, "").lstrip("# ").strip().replace("`", "")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="gpumem docs", description=__doc__)
    parser.add_argument("page", nargs="?", metavar="PAGE", help="its name, like trace or admin/node")
    return parser
