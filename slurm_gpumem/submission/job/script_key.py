"""What names a job without a model: its script and command, less what does not change its memory.

Seeds, learning rates, epochs, paths and names are left out; every other number counts, and so does the value
of each variable that the script reads from the environment.
"""

from __future__ import annotations

import os
import re
from typing import Iterator, List, Mapping, Sequence

from slurm_gpumem.formats.remembered import SCRIPT_MARK

_IGNORED = re.compile(
    r"(?:.*[-_.])?(?:seed|lr|learning[-_]?rate|min[-_]?lr|weight[-_]?decay|wd|momentum|beta[12]|epochs?|"
    r"max[-_]?steps|num[-_]?train[-_]?epochs|max[-_]?epochs|steps|iters?|iterations|warmup.*|patience|"
    r"names?|id|tag|tags|notes?|project|entity|group|comment|run|exp|experiment|"
    r"dir|directory|folder|path|root|out|output|log|logs|logdir|save|checkpoint|ckpt|resume|cache|"
    r"port|addr|host|device|verbose|log[-_]?every|log[-_]?interval|save[-_]?every|save[-_]?interval)",
    re.IGNORECASE,
)
"""Options, keys and variables whose value does not decide the memory."""
_ASSIGNED = re.compile(r"-{0,2}\+{0,2}([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_NOT_THE_USERS = re.compile(
    r"SLURM_.*|HOME|USER|LOGNAME|PATH|PWD|TMPDIR|HOSTNAME|SHELL|BASH.*|RANDOM|CONDA_.*"
)
_PROGRAM = (".py", ".sh")
_SESSION = re.compile(
    r"^(?!\s*#).*(?<![\w.])(?:jupyter(?:hub|-lab|-notebook)?|(?:jupyterhub|batchspawner)-singleuser|code-server|"
    r"rserver|rstudio-server|vncserver|sshd|tmux|screen)(?![\w/.=])",
    re.MULTILINE,
)
"""Programs that somebody types into: what a session takes says nothing of the next one."""


def script_key(text: str, args: Sequence[str], environ: Mapping[str, str]) -> str:
    """A word for all runs of this script that need the same memory."""
    import hashlib

    words: List[str] = []
    for line in text.split("\n"):
        if line.strip() and not line.lstrip().startswith("#"):
            words += [*_lasting(_words(line)), "\n"]
    read = sorted({name for name in _VARIABLE.findall(text) if not _NOT_THE_USERS.fullmatch(name)})
    values = [f"{name}={environ[name]}" for name in read if name in environ]
    parts = [*words, "\0", *_lasting(args), "\0", *_lasting(values)]
    joined = "\x1f".join(parts).encode("utf-8", "surrogateescape")
    return SCRIPT_MARK + hashlib.sha256(joined).hexdigest()[:15]


def is_session(text: str) -> bool:
    """Whether a script starts a notebook, a desktop or a shell for somebody."""
    return _SESSION.search(text) is not None


def _words(line: str) -> List[str]:
    import shlex

    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()  # a quote that goes on in the next line


def _lasting(words: Sequence[str]) -> Iterator[str]:
    """The words without those that may differ from run to run."""
    skip = False
    for word in words:
        option, assigned = _OPTION.fullmatch(word), _ASSIGNED.fullmatch(word)
        if skip and not word.startswith("-"):
            skip = False
            continue
        skip = bool(option and _IGNORED.fullmatch(option[1]))
        if skip or (assigned and _IGNORED.fullmatch(assigned[1])):
            continue
        yield f"{assigned[1]}={_plain(assigned[2])}" if assigned else _plain(word)


def _plain(word: str) -> str:
    """A path is its program's name, or nothing."""
    if "/" not in word:
        return word
    name = os.path.basename(word)
    return name if name.endswith(_PROGRAM) else ""
