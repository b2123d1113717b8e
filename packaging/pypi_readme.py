"""pypi_readme.py README [URL]: make the links of a README work where only that page is shown.

Links to other pages of the repository lead below URL; without one they become plain text, and pictures go.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")
_COMMENT = re.compile(r"^<!-- .* -->\n", re.M)


def standalone(text: str, url: str = "") -> str:
    """The page with links that lead somewhere, and without the remarks for make docs-check."""

    def replaced(link: re.Match[str]) -> str:
        picture, shown, target = link.groups()
        if url:
            return f"{picture}[{shown}]({url.rstrip('/')}/{target})"
        return "" if picture else shown

    return _LINK.sub(replaced, _COMMENT.sub("", text))


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(standalone(page.read_text(), *sys.argv[2:]))
