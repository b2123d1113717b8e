"""site_versions.py FOLDER: the versions of the site that lie in a folder, listed for its readers.

Each version is a folder of its own, as site.sh built it, and stays when another is added. `versions.js` names
them for the choice in every page's header; `index.html` leads to the newest.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_INDEX = """\
<!doctype html>
<meta charset="utf-8">
<title>slurm_gpumem</title>
<meta http-equiv="refresh" content="0; url={newest}/index.html">
<a href="{newest}/index.html">slurm_gpumem {newest}</a>
"""


def versions_in(folder: Path) -> list[str]:
    """Names of the folders that hold a version, the newest first; a release stands before its candidates."""
    found = [path.parent.name for path in folder.glob("*/index.html") if _VERSION.match(path.parent.name)]
    return sorted(found, key=_order, reverse=True)


def _order(name: str) -> tuple[list[int], bool, str]:
    numbers = _VERSION.match(name)
    assert numbers is not None
    rest = name[numbers.end() :]
    return [int(number) for number in numbers[0].split(".")], not rest, rest


def write_list(folder: Path) -> None:
    """Write both files; nothing where no version is."""
    found = versions_in(folder)
    if found:
        (folder / "versions.js").write_text(f"var siteVersions = {json.dumps(found)};\n")
        (folder / "index.html").write_text(_INDEX.format(newest=found[0]))


if __name__ == "__main__":
    write_list(Path(sys.argv[1]))
