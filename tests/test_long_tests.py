"""tests/long_tests.txt: what `make test` leaves to `make test-all`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import COLLECTED
from tests.support.long_tests import LIST, Entry, is_long, read_list

ENTRIES = [
    Entry("tests/room", True, "slow"),
    Entry("tests/room/test_one.py", False, "its command"),
    Entry("tests/room/test_one.py::test_all[big]", True, "slow"),
]


def test_every_entry_names_a_test_that_exists(request: pytest.FixtureRequest) -> None:
    root = LIST.parents[1]
    missing = [entry.prefix for entry in read_list() if not (root / entry.prefix.partition("::")[0]).exists()]
    assert missing == []
    if any("::" in str(arg) for arg in request.config.args):
        return
    # Files whose library is missing here, or that were not asked for, are not judged.
    collected = request.config.stash[COLLECTED]
    files = {node_id.partition("::")[0] for node_id in collected}
    assert [
        entry.prefix
        for entry in read_list()
        if entry.prefix.partition("::")[0] in files and not any(map(entry.names, collected))
    ] == []


@pytest.mark.parametrize(
    ("node_id", "long"),
    [
        ("tests/room/test_two.py::test_it", True),
        ("tests/room/test_one.py::test_it", False),
        ("tests/room/test_one.py::test_all[big]", True),
        ("tests/room/test_one.py::test_all[bigger]", False),
        ("tests/rooms/test_it.py::test_it", False),
        ("tests/room/test_one.pyx::test_it", True),
    ],
)
def test_the_most_precise_entry_decides_and_unknown_tests_are_not_long(node_id: str, long: bool) -> None:
    assert is_long(node_id, ENTRIES) is long


@pytest.mark.parametrize(
    "line", ["long tests/x.py", "tests/x.py  # slow", "long   # slow", "long tests/y.py  # twice"]
)
def test_a_line_that_is_no_entry_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "list.txt"
    path.write_text(f"# comment\n\nlong tests/y.py  # slow\n{line}\n")
    with pytest.raises(ValueError, match="line 4"):
        read_list(path)
