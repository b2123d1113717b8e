"""The tests that security.md, lab/docs/sites.md and tests/security.md name exist; everything has one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Iterator, Tuple

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "admin" / "security.md").read_text()
SITES = (REPOSITORY / "lab" / "docs" / "sites.md").read_text()
TESTS = (REPOSITORY / "tests" / "security.md").read_text()
_SPAN = re.compile(r"`(tests/[\w/]+\.py|test_\w+)`")


def named_tests(text: str) -> Iterator[Tuple[str, str]]:
    """(file, test) in the order of the text: a test belongs to the file that was named last."""
    for line in text.splitlines():
        file = ""
        for word in _SPAN.findall(line):
            if word.startswith("tests/"):
                file = word
            else:
                yield file, word


def test_every_test_that_is_named_exists() -> None:
    missing = [
        f"{file}: {name}"
        for file, name in named_tests(PAGE + TESTS)
        if not (REPOSITORY / file).is_file()
        or not re.search(rf"^def {name}\(", (REPOSITORY / file).read_text(), re.MULTILINE)
    ]
    assert missing == []


def test_every_file_that_is_named_exists() -> None:
    assert [
        file for file in re.findall(r"`(tests/[\w/]+\.py)`", PAGE + TESTS) if not (REPOSITORY / file).exists()
    ] == []


def test_every_threat_has_a_test() -> None:
    threats = re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)
    assert threats == [str(number) for number in range(1, len(threats) + 1)]
    tested = {
        found[1]: list(named_tests(found[0]))
        for found in re.finditer(r"^- \*\*(\d+)\*\* .*$", TESTS, re.MULTILINE)
    }
    assert [number for number in threats if not tested.get(number)] == []


def test_every_kind_of_site_has_a_test() -> None:
    kinds = re.findall(r"^\| (?!site \|)(.+?) \| ", SITES, re.MULTILINE)
    assert len(kinds) >= 14
    tested = {
        found[1]: list(named_tests(found[0]))
        for found in re.finditer(r"^- \*\*(.+?)\*\* .*$", TESTS, re.MULTILINE)
    }
    assert [kind for kind in kinds if not tested.get(kind)] == []
