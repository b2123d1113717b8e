"""What mkdocs does differently from a forge, made equal: pages are written for both."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Mapping

_SHIM = "https://unpkg.com/iframe-worker/shim"
_VERSIONS = """\
<script src="{top}../versions.js"></script>
<script src="{top}site_versions.js" data-top="{top}"></script>
"""
_BUNDLE = re.compile(r'<script src="[^"]*assets/javascripts/bundle')
_FROM_DISK = """\
<script src="{top}site_worker.js"></script>
<script src="{top}search/search_index.js"></script>
<script>var __search = {{index: Promise.resolve(__index)}}</script>
"""
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
    """Search in pages that are opened from disk, without the one script that the theme would fetch for it."""
    top = "../" * page.url.count("/")
    # Which versions lie beside this one is known where they lie, not when this one is built.
    output = output.replace("</body>", _VERSIONS.format(top=top) + "</body>")
    if _SHIM in output:
        return output.replace(_SHIM, f"{top}site_worker.js")
    # A release of the theme that does not know such pages.
    before = _BUNDLE.search(output)
    assert before is not None, page.url
    scripts = _FROM_DISK.format(top=top)
    return output[: before.start()] + scripts + output[before.start() :]


def on_post_build(config: Mapping[str, Any], **_: Any) -> None:
    """The index as a script: a page that is opened from disk may read no other file."""
    index = Path(config["site_dir"], "search", "search_index.json")
    index.with_suffix(".js").write_text(
        f"var __index = {index.read_text(encoding='utf-8')}", encoding="utf-8"
    )


def on_post_template(output_content: str, **_: Any) -> str:
    """The same for the page that a server shows instead of a missing one."""
    return output_content.replace(_SHIM, "/site_worker.js")
