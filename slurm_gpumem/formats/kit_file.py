"""What `gpumem sitekit` found on one GPU: its file, which sites send to others.

It names a GPU type and versions, and nothing of the site: no user, host, path, process or UUID. Whoever reads
one has it from a stranger: every value is checked, and `KitFileError` says what is wrong.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Type, TypeVar, Union

from slurm_gpumem.errors import GpumemError
from slurm_gpumem.formats.values import MOST_WHOLE

SCHEMA = "gpumem-kit/1"
_MOST_BYTES = 262_144
_MOST_ROWS, _MOST_TEXT = 64, 200
_PATH_OR_ID = re.compile(r"(?<![\w])[/~]\w|\bGPU-|\bMIG-|[@<>`|\[\]]")
"""Nothing that the kit says has one of these: a file that does is not ours, or should not be passed on.

What a table on a page would take for markup neither.
"""


class KitFileError(GpumemError):
    """The file is no kit's, or damaged."""


@dataclass(frozen=True)
class KitGpu:
    """The GPU, and the versions that it was measured with."""

    name: str
    driver: str
    memory_mib: int
    compute_capability: str
    sms: int
    torch: str
    cuda: str
    cudnn: str


@dataclass(frozen=True)
class KitContext:
    """What `gpumem calibrate` measures."""

    bare_mib: int
    conv_mib: int
    matmul_mib: int
    both_mib: int
    cublas_workspace_bytes: Optional[int]
    rounds_as_simulated: bool


@dataclass(frozen=True)
class KitRow:
    """One thing that was tried, a number of times."""

    part: str
    """"limits", "ends" ..."""
    what: str
    tried: int
    held: int
    promised: bool = True
    """Whether the product relies on it."""
    said: str = ""
    """Figures, in words; of what was not tried, why."""

    @property
    def failed(self) -> bool:
        """The product relies on it, and it did not hold each time."""
        return self.promised and self.held < self.tried


@dataclass(frozen=True)
class KitTraining:
    """One small training: what its process took, and what was estimated before."""

    name: str
    measured_mib: Optional[int] = None
    peak_mib: Optional[int] = None
    request_mib: Optional[int] = None
    why: str = ""
    """Why there is no such number."""

    @property
    def compared(self) -> bool:
        return None not in (self.measured_mib, self.peak_mib, self.request_mib)

    @property
    def below_need(self) -> bool:
        return self.compared and (self.request_mib or 0) < (self.measured_mib or 0)

    @property
    def error(self) -> float:
        """Of the peak, as a part of what was measured; 0 where nothing was compared."""
        return (self.peak_mib or 0) / (self.measured_mib or 1) - 1 if self.compared else 0.0


@dataclass(frozen=True)
class KitFile:
    """One run of the kit."""

    date: str
    version: str
    """gpumem's."""
    seconds: int
    complete: bool
    """False: it was interrupted."""
    gpu: Optional[KitGpu]
    context: Optional[KitContext]
    rows: Tuple[KitRow, ...]
    trainings: Tuple[KitTraining, ...]

    def to_json(self) -> str:
        """As it is stored: a line for each thing that was tried."""
        table = {"schema": SCHEMA, **asdict(self)}
        rows = {key: table.pop(key) for key in ("rows", "trainings")}
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in table.items()]
        for key, listed in rows.items():
            inner = ",\n".join(f"    {json.dumps(row)}" for row in listed)
            lines.append(f"  {json.dumps(key)}: [\n{inner}\n  ]," if listed else f"  {json.dumps(key)}: [],")
        return "{\n" + "\n".join(lines)[:-1] + "\n}\n"


def read_kit_file(path: Union[str, os.PathLike[str]]) -> KitFile:
    """A stranger's file, checked; KitFileError says what is wrong with it."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise KitFileError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise KitFileError(f"{path}: larger than {_MOST_BYTES} bytes; this is no file of gpumem sitekit")
    try:
        table = json.loads(data)
    except (ValueError, RecursionError):
        raise KitFileError(f"{path}: not JSON; gpumem sitekit writes the file that is meant here") from None
    if not isinstance(table, dict) or table.get("schema") != SCHEMA:
        found = table.get("schema") if isinstance(table, dict) else None
        raise KitFileError(
            f"{path}: its schema is {str(found)[:40]!r}, not {SCHEMA!r}: no file of gpumem sitekit, or of "
            "another version"
        )
    try:
        return _kit(table)
    except _WrongError as wrong:
        raise KitFileError(f"{path}: {wrong}; it was changed or damaged: ask for it again") from None


class _WrongError(Exception):
    pass


def _kit(table: Mapping[str, Any]) -> KitFile:
    return KitFile(
        date=_matching(table, "date", r"\d{4}-\d\d-\d\d"),
        version=_text(table, "version"),
        seconds=_whole(table, "seconds"),
        complete=_flag(table, "complete"),
        gpu=_part(table, "gpu", KitGpu),
        context=_part(table, "context", KitContext),
        rows=_listed(table, "rows", KitRow),
        trainings=_listed(table, "trainings", KitTraining),
    )


T = TypeVar("T")


def _part(table: Mapping[str, Any], key: str, kind: Type[T]) -> Optional[T]:
    value = table.get(key)
    return None if value is None else _made(value, key, kind)


def _listed(table: Mapping[str, Any], key: str, kind: Type[T]) -> Tuple[T, ...]:
    value = table.get(key)
    if not isinstance(value, list) or len(value) > _MOST_ROWS:
        raise _WrongError(f"{key} must be a list of at most {_MOST_ROWS}")
    return tuple(_made(item, f"{key}[{number}]", kind) for number, item in enumerate(value))


def _made(value: Any, where: str, kind: Type[T]) -> T:
    """A dataclass from a table that has its fields and no others, each of its type."""
    fields: Dict[str, Any] = getattr(kind, "__dataclass_fields__")  # noqa: B009 - mypy knows no such attribute
    if not isinstance(value, dict) or set(value) != set(fields):
        raise _WrongError(f"{where} must have {', '.join(fields)}")
    try:
        return kind(**{name: _BY_TYPE[field.type](value, name) for name, field in fields.items()})
    except _WrongError as wrong:
        raise _WrongError(f"{where}: {wrong}") from None


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or len(value) > _MOST_TEXT or not value.isprintable():
        raise _WrongError(f"{key} must be a text of at most {_MOST_TEXT} characters")
    if _PATH_OR_ID.search(value):
        raise _WrongError(f"{key} holds a path, an address, a UUID or markup")
    return value


def _matching(table: Mapping[str, Any], key: str, pattern: str) -> str:
    value = _text(table, key)
    if not re.fullmatch(pattern, value, re.ASCII):
        raise _WrongError(f"{key} is no {key}")
    return value


def _whole(table: Mapping[str, Any], key: str) -> int:
    value = table.get(key)
    if type(value) is not int or not 0 <= value < MOST_WHOLE:
        raise _WrongError(f"{key} must be a whole number from 0 on")
    return value


def _whole_or_none(table: Mapping[str, Any], key: str) -> Optional[int]:
    return None if table.get(key) is None else _whole(table, key)


def _flag(table: Mapping[str, Any], key: str) -> bool:
    value = table.get(key)
    if not isinstance(value, bool):
        raise _WrongError(f"{key} must be true or false")
    return value


_BY_TYPE: Dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "str": _text,
    "int": _whole,
    "Optional[int]": _whole_or_none,
    "bool": _flag,
}


def anonymous(text: str) -> str:
    """Words for the file: without what looks like a path, a UUID or an address."""
    words: List[str] = []
    for word in text.split():
        words.append("..." if _PATH_OR_ID.search(word) else word)
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(words))[:_MOST_TEXT]
