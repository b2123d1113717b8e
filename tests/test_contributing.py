"""The developer's page names files and registries that exist."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "developer" / "contributing.md"
_PATH = re.compile(r"`((?:slurm_gpumem|tests|models|docs)/[\w./-]+)`")
_ROW = re.compile(r"`([A-Z]{3,})` in `((?:slurm_gpumem|tests)/[\w./-]+\.py)`")
_PLACEHOLDER = re.compile(r"NAME|KIND|ROOM")


def test_every_path_on_the_page_exists() -> None:
    paths = [path for path in _PATH.findall(PAGE.read_text()) if not _PLACEHOLDER.search(path)]
    assert len(paths) > 15
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []


def test_every_registry_on_the_page_is_where_it_says() -> None:
    rows = _ROW.findall(PAGE.read_text())
    assert len(rows) >= 6
    for name, path in rows:
        assert re.search(rf"^{name}\b.*=", (REPOSITORY / path).read_text(), re.M), f"{path} has no {name}"


def test_every_link_on_the_page_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", PAGE.read_text()):
        assert (PAGE.parent / target).exists(), target
