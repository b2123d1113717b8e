"""`gpumem docs`: every page that ships, by its name, and no message that names a file instead."""

from __future__ import annotations

import ast
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Iterator, List

import pytest

import slurm_gpumem
from slurm_gpumem.cli.commands.docs import readable
from slurm_gpumem.cli.gpumem import main

PACKAGE = Path(slurm_gpumem.__file__).parent
DOCS = PACKAGE.parent / "docs"
PAGES = sorted(path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.glob("**/*.md"))
_NAMED = re.compile(r"gpumem docs ([a-z][\w/-]*)")


def test_the_list_has_every_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {page} " in listed for page in PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_shown_by_its_name(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", page]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# ")
    assert "<!--" not in re.sub(r"```.*?```", "", shown, flags=re.DOTALL)
    assert not re.search(r"\]\((?!http)[^)\s]*\.md", re.sub(r"```.*?```", "", shown, flags=re.DOTALL))


def test_of_two_pages_with_one_name_the_researchers_comes_and_the_other_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["docs", "quickstart"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("# Quick start for researchers")
    assert "admin/quickstart (for admins) has the same name" in printed.err


def test_an_unknown_page_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "recovry"]) == 2
    assert "did you mean 'recovery'" in capsys.readouterr().err


def test_an_unknown_page_is_refused_with_a_list_of_all_each_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "WRONG"]) == 2
    listed = capsys.readouterr().err.partition("known: ")[2].strip().split(", ")
    assert {"trace", "user/quickstart", "admin/quickstart"} <= set(listed)
    pages = [name.rpartition("/")[2] for name in listed if not name.endswith("quickstart")]
    assert len(pages) == len(set(pages))


def test_links_become_names_of_pages() -> None:
    text = (
        "see [how](../admin/node.md#x), [node.md](../admin/node.md), ![a chart](a.svg), [web](https://x.y/)"
    )
    assert readable(text, "user/trace") == "see how (admin/node), admin/node, a chart, [web](https://x.y/)"


def test_on_a_terminal_a_page_goes_through_the_pager(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    pager = f"{sys.executable} -c \"import sys; print('paged', len(sys.stdin.read()) > 1000)\""
    code = "from slurm_gpumem.cli.gpumem import main; main(['docs', 'node'])"
    env = {**os.environ, "PAGER": pager}
    subprocess.run([sys.executable, "-c", code], stdout=theirs, env=env, check=True, timeout=120)
    os.close(theirs)
    assert os.read(ours, 1000).strip() == b"paged True"
    os.close(ours)


def _texts() -> Iterator[str]:
    """Texts that people may read and that name a page: strings that are no docstring, the shipped scripts."""
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text()
        if path.name == "demo.py" or "docs" not in source:
            continue
        tree = ast.parse(source)
        bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
                yield node.value
    for folder in ("prolog", "lua"):
        yield from (path.read_text() for path in (PACKAGE / folder).iterdir() if path.is_file())


def test_no_message_names_a_page_by_a_path_that_an_installed_package_does_not_have() -> None:
    named: List[str] = [text for text in _texts() if re.search(r"docs/[\w/-]+\.md", text)]
    assert not named


def test_every_page_that_a_message_names_is_there() -> None:
    names = {name for text in _texts() for name in _NAMED.findall(text)}
    assert names
    assert names <= {*PAGES, *(page.rpartition("/")[2] for page in PAGES)}
