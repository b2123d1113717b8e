"""The one list of keys: values, documentation and examples agree with it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, Tuple

import pytest

from slurm_gpumem.config.kinds import Section
from slurm_gpumem.config.load import SharingPolicy, TraceSettings
from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.config.read import read_tables
from slurm_gpumem.config.recovery import RecoveryConfig
from slurm_gpumem.config.schema import (
    ACCOUNTING,
    DEVCLUSTER,
    NODE,
    OLD_KEYS,
    RECOVERY,
    SECTIONS,
    SHARING,
    TRACE,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
MOST_SETTINGS = 39
"""More than that nobody keeps in mind."""


@pytest.mark.parametrize(
    ("section", "values"),
    [
        (SHARING, SharingPolicy()),
        (TRACE, TraceSettings()),
        (NODE, NodeConfig()),
        (RECOVERY, RecoveryConfig()),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_key_has_a_typed_value_with_its_default(section: Section, values: Any) -> None:
    assert {name: getattr(values, name) for name in section.names} == {
        name: section.default(name) for name in section.names
    }


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_every_key_says_what_it_is_for(section: Section) -> None:
    for key in section.keys:
        assert key.doc
        assert key.kind.words
    assert len(set(section.names)) == len(section.keys)


def test_there_are_no_more_settings_than_two_good_sites_would_choose_differently() -> None:
    # What a table by partition repeats is counted once.
    assert sum(len(section.keys) for section in SECTIONS) <= MOST_SETTINGS


def test_a_key_that_was_a_setting_once_is_none_now_and_no_page_speaks_of_the_constants() -> None:
    by_name = {section.name: section for section in SECTIONS}
    for table, names in OLD_KEYS.items():
        section = by_name.get(table)
        assert not section or not [name for name in names if section.find(name)]
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        assert f"[{DEVCLUSTER.name}]" not in page.read_text(), page


def documented(page: str) -> Iterator[Tuple[str, str]]:
    """Keys and defaults in the tables of a page: | `key`, `other` | `1`, `2` | what it does |."""
    for line in (ROOT / "docs" / page).read_text().splitlines():
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        names = re.findall(r"`([a-z_]+)`", cells[0]) if len(cells) == 3 else []
        defaults = re.findall(r"`([^`]*)`|(none)", cells[1]) if names else []
        texts = [one or other for one, other in defaults] or [""]
        yield from zip(names, texts * len(names) if len(texts) == 1 else texts)


@pytest.mark.parametrize(
    ("section", "page"),
    [
        (NODE, "admin/node.md"),
        (RECOVERY, "admin/recovery.md"),
        (ACCOUNTING, "admin/accounting.md"),
        (TRACE, "user/trace.md"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_tables_for_administrators_name_every_key_and_its_default(section: Section, page: str) -> None:
    assert not {name for name, _ in documented(page)} & set(OLD_KEYS.get(section.name, ()))
    told: Dict[str, str] = {name: text for name, text in documented(page) if section.find(name)}
    assert set(told) == set(section.names)
    for key in section.keys:
        text = told.get(key.name, "")
        if key.default not in (None, {}) and key.name in told:
            assert text in (str(key.default), f'"{key.default}"') or tomllib.loads(f"x = {text}") == {
                "x": key.default
            }


def test_every_example_of_a_configuration_is_right() -> None:
    examples = 0
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for text in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            tables = tomllib.loads(text)
            if set(tables) & {section.name for section in SECTIONS}:
                examples += 1
                assert read_tables(tables, page.name, SECTIONS).problems == ()
    assert examples >= 4
