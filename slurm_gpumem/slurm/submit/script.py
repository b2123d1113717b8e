"""A batch script as sbatch reads it: where it is, its head, its #SBATCH options, a copy without some."""

from __future__ import annotations

import os
import stat
from typing import Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

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


# `#GPUMEM key=value` lines in the head of a batch script, written like #SBATCH lines.

MARK = "#GPUMEM"
_OLD_KEY = "memory-line"
"""Stands in scripts that earlier versions wrote."""
_INSTEAD = f"write {MARK} model=summary.txt (with gpusbatch) or {MARK} mem=12G instead"

_MEANT = {
    "memory": "mem",
    "gpu-mem": "mem",
    "gpu-memory": "mem",
    "gpumem": "mem",
    "vram": "mem",
    "batch": "batch-size",
    "bs": "batch-size",
    "summary": "model",
    "optim": "optimizer",
    "dtype": "precision",
    "exclusive": "exclusive-gpu",
    "slowdown": "max-slowdown",
}
"""Keys that people write, and those that mean the same here."""


class Directive(NamedTuple):
    """One key=value of a #GPUMEM line."""

    key: str
    value: str
    line: int


class Directives(NamedTuple):
    """What the script's #GPUMEM lines say, and what is wrong with them."""

    found: Tuple[Directive, ...]
    warnings: Tuple[str, ...]
    old_line: bool = False
    """Whether a memory line is there, which is ignored; a warning says so."""


def read_directives(
    script: BatchScript, known_keys: Iterable[str], switches: Sequence[str] = ()
) -> Directives:
    """All #GPUMEM directives of the script's head; what is not understood becomes a warning.

    The bare name of a switch means that it is on.
    """
    known = list(known_keys)
    found: List[Directive] = []
    warnings: List[str] = []
    end, old_line = 0, False
    for number, line in script.head():
        end = number
        where = f"{script.name}, line {number}"
        if not _is_directive(line):
            warnings += _slip(line, where)
            continue
        words = _words(line[len(MARK) :], where, warnings)
        if any(a.endswith("=") or b.startswith("=") for a, b in zip(words, words[1:])):
            joined = "=".join(part.strip() for part in line[len(MARK) :].split("="))
            warnings.append(f"{where}: is ignored; write it without blanks around =, like {MARK} {joined}")
            continue
        for word in words:
            key, equals, value = word.partition("=")
            if word in switches:
                found.append(Directive(key, "yes", number))
            elif key == _OLD_KEY:
                if not old_line:
                    warnings.append(f"{where}: {key}= is ignored; {_INSTEAD}")
                old_line = True
            elif not equals or not value:
                warnings.append(f"{where}: {word!r} is not key=value; ignored")
            elif key not in known:
                warnings.append(f"{where}: unknown key {key!r}{_nearest(key, known)}; ignored")
            else:
                found.append(Directive(key, value, number))
    for number, line in enumerate(script.text().split("\n")[end:], end + 1):
        if _is_directive(line):
            warnings.append(
                f"{script.name}, line {number}: {MARK} stands behind the first command and is not read"
            )
            break
    return Directives(tuple(found), tuple(warnings), old_line)


def _is_directive(line: str) -> bool:
    return line.startswith(MARK) and not line[len(MARK) :][:1].strip()


def _slip(line: str, where: str) -> List[str]:
    """A warning for a comment that was meant as a #GPUMEM line: "# GPUMEM mem=12G", "#gpumem mem=12G"."""
    if "gpu" not in line.lower():
        return []
    import re

    # Not "##GPUMEM", with which people switch a line off (as ##SBATCH). The plug-in has the same rule.
    meant = re.match(r"\s*#[ \t]*gpu[-_]?mem[ \t]*:?[ \t]*([a-z-]+=.*)", line, re.IGNORECASE)
    if not meant:
        return []
    return [f"{where}: is ignored; write it like this: {MARK} {meant[1].strip()}"]


def _words(text: str, where: str, warnings: List[str]) -> List[str]:
    import shlex

    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        warnings.append(f"{where}: {error} in {text.strip()!r}; line ignored")
        return []


def _nearest(key: str, known: List[str]) -> str:
    from slurm_gpumem.text import near_names

    meant = _MEANT.get(key.lower().lstrip("-").replace("_", "-"))
    near = [meant] if meant in known else near_names(key, known)
    return f" (did you mean {near[0]!r}?)" if near else ""
