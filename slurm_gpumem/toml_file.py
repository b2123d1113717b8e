"""Read a TOML file on any Python from 3.9 on, with errors for people.

Most of our files are plain: sections, and on each line a key with a number, a string, or a list of them.
Such a file is read here, ten times as fast as by the library, because a submission reads a few of them.
Anything else, mistakes included, is left to the library.
"""

from __future__ import annotations

import os
import re
import sys
from json import JSONDecoder
from typing import Any, Dict, NoReturn, Optional, Union

from slurm_gpumem.errors import ConfigError

_LINE = re.compile(r"(?:#.*|\[(?P<section>[\w-]+)\]|(?P<key>[\w-]+)[ \t]*=[ \t]*(?P<value>.*))?", re.ASCII)
_NOT_PLAIN = re.compile(r"[\\{\x7f]|\bnull\b")
"""In a value: what is written differently in TOML and JSON, or is only in one of them."""


def load_toml(path: Union[str, os.PathLike[str]]) -> Dict[str, Any]:
    """The file's tables; ConfigError names the file and the line when it is not TOML."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    try:
        text = data.decode()
        tables = read_plain(text)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None
    return _read_all(text, path) if tables is None else tables


def read_plain(text: str) -> Optional[Dict[str, Any]]:
    """The tables of a plain file; None for any other."""
    tables: Dict[str, Any] = {}
    now = tables
    for line in text.split("\n"):
        found = _LINE.fullmatch(line.strip(" \t\r"))
        if found is None:
            return None
        section, key, value = found.groups()
        if section is not None:
            if section in tables:
                return None
            now = tables[section] = {}
        elif key is not None:
            if key in now or _NOT_PLAIN.search(value):
                return None
            try:
                now[key], end = _VALUES.raw_decode(value)
            except (ValueError, RecursionError):
                return None
            if end != len(value):
                return None
    return tables


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of TOML")


_VALUES = JSONDecoder(parse_constant=_refuse)


def _read_all(text: str, path: Union[str, os.PathLike[str]]) -> Dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # some of its numbers are too long for Python
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None
