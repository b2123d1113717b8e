"""`#GPUMEM key=value` lines in the head of a batch script, written like #SBATCH lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, List, NamedTuple, Sequence, Tuple

if TYPE_CHECKING:
    from slurm_gpumem.slurm.submit.script import BatchScript

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
