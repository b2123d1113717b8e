"""Which tests are too long for `make test`: those named in tests/long_tests.txt."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple

LIST = Path(__file__).resolve().parents[1] / "long_tests.txt"


class Entry(NamedTuple):
    """A line of the list: a folder, a file or a test, with or without its parameters."""

    prefix: str
    long: bool
    reason: str

    def names(self, node_id: str) -> bool:
        """Whether the test is this one, or in this folder or file."""
        # Asked for every test and every line: the first condition alone answers nearly always.
        return node_id.startswith(self.prefix) and node_id[len(self.prefix) :][:1] in ("", "/", ":", "[")


def read_list(path: Path = LIST) -> List[Entry]:
    """All entries; a ValueError names a line that is none."""
    entries: Dict[str, Entry] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        prefix, _, reason = rest.partition("  # ")
        prefix = prefix.strip()
        if word not in ("long", "keep") or not prefix or not reason.strip() or prefix in entries:
            raise ValueError(
                f"{path.name}, line {number}: {line!r}: expected 'long PATH  # reason' or "
                "'keep PATH  # reason', each PATH once"
            )
        entries[prefix] = Entry(prefix, word == "long", reason.strip())
    return list(entries.values())


def is_long(node_id: str, entries: Iterable[Entry]) -> bool:
    """What the most precise entry says; a test that none names is not long."""
    named = [entry for entry in entries if entry.names(node_id)]
    return bool(named) and max(named, key=lambda entry: len(entry.prefix)).long
