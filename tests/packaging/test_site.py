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

import slurm_gpumem

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site" / slurm_gpumem.__version__


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "packaging" / f"{name}.py")
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
    assert _module("site_hooks").on_page_markdown(written) == read


def test_every_file_that_a_page_links_to_is_copied_beside_it() -> None:
    script = (ROOT / "packaging" / "site.sh").read_text()
    find = re.search(r"(?s)^find .*?-type f", script, re.M)
    assert find is not None
    listed = subprocess.run(["sh", "-c", find[0]], cwd=ROOT, check=True, capture_output=True, text=True)
    copied = {Path(line) for line in listed.stdout.splitlines()}
    missing = set()
    for page in [path for path in copied if path.suffix == ".md"]:
        text = re.sub(r"(?s)```.*?```|`[^`\n]*`", "", (ROOT / page).read_text())
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            path = Path(os.path.normpath(page.parent / target))
            if "://" not in target and (ROOT / path).is_file() and path not in copied:
                missing.add(f"{page}: {target}")
    assert not missing


def _version(folder: Path, name: str) -> None:
    (folder / name / "docs").mkdir(parents=True)
    scripts = _module("site_hooks")._VERSIONS
    for page, top in (("index.html", ""), ("docs/page.html", "../")):
        header = '<header class="md-header__inner"></header>'
        (folder / name / page).write_text(f"<!doctype html><body>{header}{scripts.format(top=top)}</body>")
    shutil.copy(ROOT / "packaging" / "site_versions.js", folder / name)


def test_versions_lie_beside_each_other_and_the_front_page_leads_to_the_newest(tmp_path: Path) -> None:
    for name in ("0.9.0", "0.10.0", "0.10.0rc1", "assets"):
        _version(tmp_path, name)
    _module("site_versions").write_list(tmp_path)
    listed = (tmp_path / "versions.js").read_text()
    assert listed == 'var siteVersions = ["0.10.0", "0.10.0rc1", "0.9.0"];\n'
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize("page", ["index.html", "docs/page.html"])
def test_a_reader_chooses_among_versions_also_from_disk(tmp_path: Path, page: str) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("needs chromium")
    site = tmp_path / "site"
    for name in ("0.1.0", "0.2.0"):
        _version(site, name)
    alone = _dom(browser, tmp_path, site / "0.1.0" / page)
    assert "<select" not in alone
    _module("site_versions").write_list(site)
    shown = _dom(browser, tmp_path, site / "0.1.0" / page)
    assert re.findall(r"<option[^>]*>([^<]*)", shown) == ["0.2.0", "0.1.0"]


def _dom(browser: str, folder: Path, page: Path, query: str = "") -> str:
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command = [browser, *options, "--virtual-time-budget=20000", "--dump-dom", f"file://{page}{query}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=180).stdout


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
    shown = _dom(browser, tmp_path, SITE / "docs" / "user" / "quickstart.html", "?q=sampler")
    assert re.search(r"[1-9]\d* matching documents", shown)
