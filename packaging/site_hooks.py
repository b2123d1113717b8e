"""What mkdocs does differently from a forge, made equal: pages are written for both."""

from __future__ import annotations

import re
from typing import Any

_SHIM = "https://unpkg.com/iframe-worker/shim"
_FENCE = re.compile(r" {0,3}(```|~~~)")
_LIST = re.compile(r"(?:[-*+]|\d+\.) ")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Lists and tables that begin right below a line of text or a block, as forges read them."""
    lines: list[str] = []
    inside = False
    for line in markdown.split("\n"):
        before = lines[-1] if lines else ""
        if not inside and before.strip() and _begins(line) and not _goes_on(before, line):
            lines.append("")
        if _FENCE.match(line):
            inside = not inside
        lines.append(line)
    return "\n".join(lines)


def _begins(line: str) -> bool:
    return bool(_LIST.match(line)) or line.startswith("|")


def _goes_on(before: str, line: str) -> bool:
    """Whether the line above is part of the same list or table."""
    if line.startswith("|"):
        return before.startswith("|")
    return bool(_LIST.match(before)) or before.startswith("  ")


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The one script that the theme would fetch, replaced by one of the site's own."""
    depth = page.url.count("/")
    return output.replace(_SHIM, "../" * depth + "site_worker.js")


def on_post_template(output_content: str, **_: Any) -> str:
    """The same for the page that a server shows instead of a missing one."""
    return output_content.replace(_SHIM, "/site_worker.js")
