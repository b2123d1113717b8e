"""Every link of a page leads to a file that is there, and to a heading of it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Iterator, Set, Tuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "lab").rglob("*.md")]
PAGES += (ROOT / "models").rglob("*.md")
CODE = re.compile(r"(?s)```.*?```|`[^`\n]*`")


def _links(page: Path) -> Iterator[Tuple[Path, str]]:
    """What it leads to, with the heading there or ""."""
    for target in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())):
        if "://" not in target:
            name, _, heading = target.partition("#")
            yield Path(os.path.normpath(page.parent / name)) if name else page, heading


def _headings(page: Path) -> Set[str]:
    """As forges spell them in addresses."""
    text = re.sub(r"(?s)```.*?```", "", page.read_text())
    titles = re.findall(r"(?m)^#+ (.+)$", text)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}


def test_every_link_leads_to_a_file() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {path}" for page in PAGES for path, _ in _links(page) if not path.exists()
    ]
    assert missing == []


def test_every_link_to_a_heading_leads_to_one() -> None:
    missing = [
        f"{page.relative_to(ROOT)}: {path.name}#{heading}"
        for page in PAGES
        for path, heading in _links(page)
        if heading and path.suffix == ".md" and path.exists() and heading not in _headings(path)
    ]
    assert missing == []
