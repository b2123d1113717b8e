"""The one reader of gpumem.toml: the checked values of some tables, and everything that is wrong with them.

It never fails. Who cannot go on with a wrong file (commands) calls `usable`, which raises; who must go on
(hooks: a typing error may not drain a node) uses the values that are right and logs `notes`.
"""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from slurm_gpumem.config.kinds import Section
from slurm_gpumem.config.schema import DEVCLUSTER, INSTEAD, OLD_KEYS, SECTIONS
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.text import near_names

_TABLES = tuple(section.name for section in SECTIONS)
_KNOWN = {*_TABLES, *OLD_KEYS, DEVCLUSTER.name}


class Problem(NamedTuple):
    """One thing that is wrong in a file."""

    file: str
    table: str
    """The table it is in; "" for an unknown table and for a file that cannot be read."""
    key: str
    """As it stands in the file: "sharing.mode"; "" when the file as a whole cannot be read."""
    text: str
    """What is wrong, with the file and what would be right."""
    instead: str
    """What a reader that goes on does: "the default is used", "ignored"."""
    unknown: bool = False
    """Whether it is a name that nobody knows: of another version, or a slip; nothing else is wrong then."""
    old: bool = False
    """Whether it is the list of keys that were settings once: a reason for a warning, never for an error."""


class Reading(NamedTuple):
    """What a file says."""

    file: str
    values: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """By table and key: only what is given there and right."""
    problems: Tuple[Problem, ...] = ()

    def table(self, section: Section) -> Mapping[str, Any]:
        """The values of one table; empty when the file has none."""
        return self.values.get(section.name, {})

    def usable(self, *sections: Section) -> Reading:
        """The same; ConfigError, naming file and key, for a wrong value in these tables or the file.

        Not for a name that nobody knows, which may be another version's (`unknown` has those).
        """
        found = [problem.text for problem in self._of(sections) if not problem.unknown]
        if found:
            raise ConfigError("\n".join(found))
        return self

    def unknown(self, *sections: Section) -> Tuple[str, ...]:
        """Unknown names in these tables, unknown tables, and what was a setting once, in whatever table."""
        return tuple(problem.text for problem in self._of(sections) if problem.unknown)

    def _of(self, sections: Sequence[Section]) -> List[Problem]:
        names = ("", *(section.name for section in sections))
        return [problem for problem in self.problems if problem.table in names]

    @property
    def notes(self) -> Tuple[str, ...]:
        """What is wrong and what is done about it, for a log."""
        return tuple(f"{problem.text} ({problem.instead})" for problem in self.problems)


def read_file(path: str, sections: Sequence[Section]) -> Reading:
    """These tables of a file; nothing, and no problem, where there is no file."""
    if not os.path.exists(path):
        return Reading(path)
    from slurm_gpumem.toml_file import load_toml

    try:
        tables = load_toml(path)
    except ConfigError as error:
        return Reading(path, problems=(Problem(path, "", "", str(error), "the defaults are used"),))
    return read_tables(tables, path, sections)


def read_tables(tables: Mapping[str, Any], file: str, sections: Sequence[Section]) -> Reading:
    """The same of tables that are already parsed."""
    # A table that is known but not asked for is its own reader's to check.
    problems = [_unknown(file, "", name, _TABLES) for name in tables if name not in _KNOWN]
    problems += _old_keys(file, tables)
    values: Dict[str, Mapping[str, Any]] = {}
    for section in sections:
        table = tables.get(section.name)
        if isinstance(table, dict):
            values[section.name] = _checked(section, table, file, problems)
        elif table is not None:
            what = f"{section.name} must be a table: write [{section.name}] and its keys under it"
            problems.append(_problem(file, section.name, what, "the defaults are used"))
    return Reading(file, values, tuple(problems))


def _checked(
    section: Section, table: Mapping[str, Any], file: str, problems: List[Problem]
) -> Dict[str, Any]:
    values: Dict[str, Any] = {}
    for name, value in table.items():
        where = f"{section.name}.{name}"
        key, named = section.find(name), [below for below in section.named if below.name == where]
        if named:
            values[name] = _named(named[0], value, file, problems)
        elif key is None and not _is_old(section.name, name):
            problems.append(_unknown(file, section.name, name, section.names))
        elif key is not None:
            try:
                values[key.name] = key.kind.checked(value)
            except ValueError as error:
                problems.append(_problem(file, where, f"{where} {error}", "the default is used"))
    return values


def _named(section: Section, tables: Any, file: str, problems: List[Problem]) -> Dict[str, Any]:
    """The tables [sharing.partition.NAME], by name."""
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        what = f"{section.name} must be tables: write [{section.name}.NAME] and keys under it"
        problems.append(_problem(file, section.name, what, "ignored"))
        return {}
    return {
        name: _checked(section._replace(name=f"{section.name}.{name}"), table, file, problems)
        for name, table in tables.items()
    }


def _is_old(table: str, name: str) -> bool:
    kind = "sharing.partition" if table.startswith("sharing.partition.") else table
    return name.replace("-", "_") in OLD_KEYS.get(kind, ())


def _old_keys(file: str, tables: Mapping[str, Any]) -> List[Problem]:
    """One problem that names every key of the file that was a setting once, in whatever table; or none."""
    partitions = _table(_table(tables, "sharing"), "partition")
    inside = {name: _table(tables, name) for name in OLD_KEYS}
    inside.update({f"sharing.partition.{name}": _table(partitions, name) for name in partitions})
    found = [(table, name) for table, keys in inside.items() for name in keys if _is_old(table, name)]
    if not found:
        return []
    what, those = ("a setting", "that line") if len(found) == 1 else ("settings", "those lines")
    names = ", ".join(f"{table}.{name}" for table, name in found)
    hints = [text for key, text in INSTEAD.items() if any(key in pair for pair in found)]
    text = f"{file}: no longer {what}, and without effect: {names}"
    return [Problem(file, "", "", "; ".join([text, f"remove {those}", *hints]), "ignored", True, old=True)]


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = tables.get(name)
    return found if isinstance(found, dict) else {}


def _unknown(file: str, section: str, name: str, known: Sequence[str]) -> Problem:
    near = next(iter(near_names(name, known)), "")
    homes = [other.name for other in SECTIONS if section and name in other.names]
    if homes:
        hint = f"it belongs to [{homes[0]}]"
    else:
        hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known)}"
    if not section:
        return Problem(file, "", name, f"{file}: unknown key {name!r}; {hint}", "ignored", unknown=True)
    found = _problem(file, f"{section}.{name}", f"{section}: unknown key {name!r}; {hint}", "ignored")
    return found._replace(unknown=True)


def _problem(file: str, key: str, what: str, instead: str) -> Problem:
    return Problem(file, key.partition(".")[0], key, f"{file}: {what}", instead)
