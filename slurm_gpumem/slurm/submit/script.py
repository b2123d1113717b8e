"""A batch script as sbatch reads it: where it is, its head, its #SBATCH options, a copy without some."""

from __future__ import annotations

import os
import stat
from typing import Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.errors import UsageError
from slurm_gpumem.slurm.submit.sbatch_options import Option, OptionSpec, OptionTable, read_options
from slurm_gpumem.units import MIB

MAX_BYTES = 4 * MIB
"""sbatch's own default limit."""

_MARK = "#SBATCH"


class ScriptError(UsageError):
    """The batch script cannot be read or is none."""


class BatchScript(NamedTuple):
    """The text of a job script, and where it came from."""

    name: str
    """For messages: the path as given, or "standard input"."""
    path: Optional[str]
    """None when it came from standard input."""
    data: bytes
    again_readable: bool = True
    """False for a pipe: sbatch cannot read it a second time."""

    def text(self) -> str:
        """The text, every byte kept (undecodable ones as surrogates)."""
        return self.data.decode("utf-8", "surrogateescape")

    def head(self) -> Iterator[Tuple[int, str]]:
        """Numbered lines up to the first that is neither blank nor a comment, as sbatch does."""
        for number, line in enumerate(self.text().split("\n"), start=1):
            if line.strip() and not line.lstrip().startswith("#"):
                return
            yield number, line

    def options(
        self, table: OptionTable, ask_more: Callable[[], Sequence[OptionSpec]] = tuple
    ) -> Tuple[Option, ...]:
        """The options of its #SBATCH lines, in order; `ask_more` as for a command line."""
        return read_options([word for _, word in self._words()], table, ask_more=ask_more)

    @property
    def het_job(self) -> bool:
        """Whether its #SBATCH lines describe a heterogeneous job."""
        return any(word in ("hetjob", "packjob") for _, word in self._words())

    def without(self, unwanted: Callable[[Option], bool], table: OptionTable) -> BatchScript:
        """A copy whose #SBATCH lines lack some options; all other lines stay as they are."""
        words = list(self._words())
        options = read_options([word for _, word in words], table)
        changed = {
            words[at][0]
            for option in options
            if unwanted(option)
            for at in range(option.at, min(option.at + len(option.words), len(words)))
        }
        if not changed:
            return self
        kept: dict[int, List[str]] = {line: [] for line in changed}
        for option in options:
            line = words[option.at][0]
            if line in changed and not unwanted(option):
                kept[line] += option.words
        lines = self.text().split("\n")
        for line, rest in kept.items():
            lines[line - 1] = " ".join([_MARK, *map(_quote, rest)]) if rest else f"#{lines[line - 1]}"
        data = "\n".join(lines).encode("utf-8", "surrogateescape")
        return self._replace(data=data)

    def _words(self) -> Iterator[Tuple[int, str]]:
        for number, line in self.head():
            if line.startswith(_MARK):
                for word in _split(line[len(_MARK) :]):
                    yield number, word


def find_script(name: str) -> str:
    """The path sbatch would open: the working directory first, then the PATH for a bare name."""
    if "/" in name or os.path.exists(name):
        return name
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(folder, name)
        if folder and os.path.isfile(path) and os.access(path, os.R_OK):
            return path
    return name


def read_script(name: str) -> BatchScript:
    """Read a script given on the command line; ScriptError says what is wrong with it."""
    path = find_script(name)
    try:
        with open(path, "rb") as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScriptError(f"{name}: the job script cannot be read: {reason}") from None
    return BatchScript(name, path, data, regular)


def check_script(script: BatchScript) -> None:
    """ScriptError when sbatch would not take it for a batch script."""
    if not script.data.strip():
        raise ScriptError(f"{script.name}: the job script is empty.")
    if not script.data.startswith(b"#!"):
        raise ScriptError(
            f"{script.name}: a job script must begin with #! and its interpreter.\n"
            "Add #!/bin/bash as its first line."
        )
    if len(script.data) > MAX_BYTES:
        raise ScriptError(f"{script.name}: larger than {MAX_BYTES // MIB} MiB, which is no job script.")


def _split(text: str) -> List[str]:
    """Words by sbatch's rules: quotes, backslashes in and out of them, an unquoted # ends the line."""
    words: List[str] = []
    word: Optional[str] = None
    quote = ""
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\" and at < len(text) and (quote or not text[at].isspace()):
            word = (word or "") + text[at]
            at += 1
        elif quote:
            if char == quote:
                quote = ""
            else:
                word = (word or "") + char
        elif char in "'\"":
            quote = char
            word = word or ""
        elif char == "#":
            break
        elif char.isspace():
            if word is not None:
                words.append(word)
            word = None
        else:
            word = (word or "") + char
    if word is not None:
        words.append(word)
    return words


def _quote(word: str) -> str:
    if word and all(char.isalnum() or char in "-_=:,./@%+" for char in word):
        return word
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
