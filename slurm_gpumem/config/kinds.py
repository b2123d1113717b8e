"""What the schema of gpumem.toml is written in: kinds of values, keys, tables.

All are NamedTuples: they are defined on the submit path, where a dataclass takes ten times as long.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


class Kind(NamedTuple):
    """A kind of value."""

    words: str
    """What a value must be: "one of shard, mps"."""
    convert: Callable[[Any], Any]
    """The value as it is used; ValueError when it is none, ConfigError where more can be said."""

    def checked(self, value: Any) -> Any:
        """The value as it is used; ValueError says what it must be instead."""
        try:
            return self.convert(value)
        except ConfigError as error:
            raise ValueError(f"must be {self.words}: {error}") from None
        except ValueError:
            raise ValueError(f"must be {self.words}, not {value!r}") from None


class Key(NamedTuple):
    """One key of a table."""

    name: str
    kind: Kind
    default: Any
    """As one would write it in the file; None for a key that is unset by default."""
    doc: str


class Section(NamedTuple):
    """One table of the file."""

    name: str
    keys: Tuple[Key, ...]
    named: Tuple[Section, ...] = ()
    """Tables below it that carry a name: [sharing.partition.NAME]."""

    def default(self, name: str) -> Any:
        """The default of a key, as it is used."""
        key = next(key for key in self.keys if key.name == name)
        return None if key.default is None else key.kind.checked(key.default)

    def find(self, name: str) -> Optional[Key]:
        """The row of a key, however its words are joined ("on-oom", "on_oom"); None for an unknown one."""
        plain = name.replace("-", "_")
        return next((key for key in self.keys if key.name.replace("-", "_") == plain), None)

    @property
    def names(self) -> List[str]:
        """The names of its keys."""
        return [key.name for key in self.keys]


def one_of(*choices: str) -> Kind:
    """A word out of a few."""

    def convert(value: Any) -> str:
        if value not in choices:
            raise ValueError
        return str(value)

    return Kind(f"one of {', '.join(choices)}", convert)


def whole_number(words: str, least: int, most: int = 2**63 - 1) -> Kind:
    """A whole number within bounds."""

    def convert(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError
        return value

    return Kind(words, convert)


def table_of(words: str, kind: Kind) -> Kind:
    """A table of names with a value of one kind each."""

    def convert(value: Any) -> Dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError
        return {str(name): kind.checked(item) for name, item in value.items()}

    return Kind(words, convert)


def choices_of(words: str, kind: Kind, defaults: Mapping[str, Any]) -> Kind:
    """A table of these names only; those that are left out keep their defaults."""

    def convert(value: Any) -> Dict[str, Any]:
        if not isinstance(value, dict) or not value.keys() <= defaults.keys():
            raise ValueError
        return {name: kind.checked(value.get(name, default)) for name, default in defaults.items()}

    return Kind(f"{words} with the keys {', '.join(defaults)}", convert)


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.05 <= value <= 86_400:
        raise ValueError
    return float(value)


def _within(least: float, most: float) -> Callable[[Any], float]:
    def convert(value: Any) -> float:
        # Also as text: it may come from a variable.
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        if not least <= float(value) <= most:
            raise ValueError
        return float(value)

    return convert


def _absolute(value: Any) -> str:
    if not isinstance(value, str) or not os.path.isabs(value):
        raise ValueError
    return value


def _path(value: Any) -> Path:
    from pathlib import Path

    return Path(_absolute(value))


def _word(value: Any) -> str:
    if not isinstance(value, (str, int, float)):
        raise ValueError
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _groups(value: Any) -> Tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ValueError
    return tuple(names)


def _ladder(value: Any) -> Any:

    if not isinstance(value, (list, tuple)):
        raise ValueError
    return parse_ladder(value)


def _duration(value: Any) -> int:
    from slurm_gpumem.units import parse_seconds

    if not isinstance(value, str):
        raise ValueError
    try:
        return parse_seconds(value)
    except UsageError:
        raise ValueError from None


AT_LEAST_ONE = whole_number("a whole number of at least 1", 1)
MEBIBYTES = whole_number("a whole number of MiB", 0)
SWITCH = Kind("true or false", _switch)
DURATION = Kind('a time like "2h" or "90m"', _duration)
SECONDS = Kind("a number of seconds, at most a day", _seconds)
SLOWDOWN = Kind("a factor of at least 1 (1.15: a step may take 15 % longer)", _within(1, 100))
PART = Kind("a share of a GPU from 0 to 1 (0.5: half of it)", _within(0, 1))
COVERAGE = Kind("a share of jobs from 0.5 to 0.995 (0.98: requests hold for 98 of 100)", _within(0.5, 0.995))
ABSOLUTE = Kind("an absolute path", _absolute)
PATH = Kind("an absolute path", _path)
WORD = Kind("a word or a number", _word)
TEXT = Kind("text", str)
NAMES = Kind('a list of names, like ["debug"]', _groups)
GROUPS = Kind('a list of groups, like ["gpuadmins"]', _groups)
LADDER = Kind('a list like ["+25%", "whole-gpu"]', _ladder)


# The steps of the recovery ladder, as a configuration writes them.

WHOLE_GPU = "whole-gpu"
_MARGIN = re.compile(r"(need)?\+([0-9]{1,4})%")


class Step(NamedTuple):
    """One step of the ladder."""

    margin_percent: Optional[int]
    """On top of what it had or needed; None for a whole GPU."""
    by_need: bool = False
    """On top of what it is known to have needed only; twice its share where that is not known."""


def parse_ladder(words: Sequence[object]) -> Tuple[Step, ...]:
    """The steps of a configuration's list; ConfigError says what is wrong with it."""
    steps: List[Step] = []
    for word in words:
        match = _MARGIN.fullmatch(word) if isinstance(word, str) else None
        if match and int(match[2]) > 0:
            steps.append(Step(int(match[2]), bool(match[1])))
        elif word == WHOLE_GPU:
            steps.append(Step(None))
        else:
            raise ConfigError(
                f'{word!r} is no step of the recovery ladder; write "need+25%", "+25%" or "{WHOLE_GPU}"'
            )
    if any(step.margin_percent is None for step in steps[:-1]):
        raise ConfigError(f'after "{WHOLE_GPU}" there is nothing more to ask for: it must be the last step')
    return tuple(steps)
