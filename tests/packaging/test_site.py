"""The documentation site: every page is in it, and it needs nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"


def _hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "packaging" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_menu_once() -> None:
    menu = re.findall(r": ((?:docs|models)/\S+\.md|README\.md|CHANGELOG\.md)$", _config(), re.M)
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(menu) == sorted({*pages, "README.md", "CHANGELOG.md", "models/README.md"})


def _config() -> str:
    return (ROOT / "packaging" / "mkdocs.yml").read_text()


def test_there_is_a_quick_start_for_every_reader_and_readme_leads_to_it() -> None:
    readme = (ROOT / "README.md").read_text()
    for reader in ("user", "admin", "developer"):
        assert (ROOT / "docs" / reader / "quickstart.md").exists()
        assert f"(docs/{reader}/quickstart.md)" in readme


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("text\n- a\n- b", "text\n\n- a\n- b"),
        ("```\n- a\n```\n- b", "```\n- a\n```\n\n- b"),
        ("- a\n  goes on\n- b", "- a\n  goes on\n- b"),
        ("text\n| a |\n|---|\n| b |", "text\n\n| a |\n|---|\n| b |"),
        ("1. a\n2. b", "1. a\n2. b"),
    ],
)
def test_lists_and_tables_begin_where_a_forge_lets_them_begin(written: str, read: str) -> None:
    assert _hooks().on_page_markdown(written) == read


@pytest.mark.skipif(not os.environ.get("GPUMEM_TEST_LONG"), reason="long: make test-packages")
def test_search_works_in_pages_that_are_opened_from_disk(tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("needs chromium")
    subprocess.run(["make", "docs"], cwd=ROOT, check=True)
    elsewhere = set()
    for page in SITE.rglob("*.html"):
        elsewhere |= set(re.findall(r'(?:src|<link[^>]* href)="(https?:[^"]*)"', page.read_text()))
    assert not elsewhere
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    address = f"file://{SITE}/docs/user/quickstart.html?q=sampler"
    command = [browser, *options, "--virtual-time-budget=20000", "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.search(r"[1-9]\d* matching documents", done.stdout)
