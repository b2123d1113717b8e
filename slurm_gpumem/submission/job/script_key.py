"""What names a job without a model: its script and command, less what does not change its memory.

Seeds, learning rates, epochs, paths and names are left out, except those of models, data and configurations;
every other number counts, and so does the value of each variable that the script reads from the environment,
and what programs and configurations hold that it names.
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
_WRITES = re.compile(
    r"(?:.*[-_.])?(?:out|output|log|logs|logdir|save|run|exp|experiment)(?:[-_.].*)?", re.IGNORECASE
)
_NAMES_NEED = re.compile(
    r"(?:.*[-_.])?(?:models?|arch|architecture|backbone|encoder|decoder|tokenizer|net|network|pretrained|weights|"
    r"data|datasets?|train|valid|val|test|eval|task|config|configs|cfg|conf|recipe)(?:[-_.]?"
    r"(?:names?|id|tags?|dir|directory|folder|path|root|file|or[-_]path|name[-_]or[-_]path))?",
    re.IGNORECASE,
)
"""What a run works on or with, whichever words besides its name has: --model_name_or_path, --data-dir."""
_READ = (
    ".py", ".sh", ".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf", ".gin", ".smk", "Snakefile",
)  # fmt: skip
"""Files whose content counts, where they can be read."""
_MOST_BYTES = 1 << 18
_ASSIGNED = re.compile(r"-{0,2}\+{0,2}([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
_OPTION = re.compile(r"--?([A-Za-z][\w.-]*)")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_NOT_THE_USERS = re.compile(
    r"SLURM_.*|HOME|USER|LOGNAME|PATH|PWD|TMPDIR|HOSTNAME|SHELL|BASH.*|RANDOM|CONDA_.*"
)
_SESSION = (
    r"(?m)^[^#\n]*?(?<![\w.-])(?:jupyter(?:hub)?[- ](?:lab|notebook|server|singleuser)|"
    r"batchspawner-singleuser|code-server|openvscode-server|rserver|vncserver|Xvnc|create_yml)(?![\w.-])"
)
"""Starts a notebook, an editor or a desktop; the last is a function in the scripts of Open OnDemand."""
_READS_ITS_TASK = r"(?m)^[^#\n]*?(?:-m submitit\.core\._submit|\.command\.(?:run|sh|stub))\b"
"""Scripts of submitit, Hydra and Nextflow: what they run is in a file; they are the same for each task."""
_SHELLS = ("bash", "sh", "zsh", "csh", "tcsh", "fish", "tmux", "screen")


def why_never_same(text: str, command: Sequence[str], *, pty: bool) -> str:
    """Why runs of this script need not be alike, though their key is; "" where nothing says so."""
    texts = (text, " ".join(command))
    shell = len(command) == 1 and os.path.basename(command[0]) in _SHELLS
    if pty or shell or any(re.search(_SESSION, one) for one in texts):
        return "somebody works in it, so that no two runs need the same memory"
    if any(re.search(_READS_ITS_TASK, one) for one in texts):
        return "its script is the same for every task, and does not say what runs"
    return ""


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


def _words(line: str) -> List[str]:
    import shlex

    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()  # a quote that goes on in the next line


def _lasting(words: Sequence[str]) -> Iterator[str]:
    """The words without those that may differ from run to run."""
    skip = counts = False
    for word in words:
        option, assigned = _OPTION.fullmatch(word), _ASSIGNED.fullmatch(word)
        if skip and not word.startswith("-"):
            skip = False
            continue
        if counts and not word.startswith("-"):
            counts = False
            yield _named(word)
            continue
        name = option[1] if option else assigned[1] if assigned else ""
        counts = bool(name and _NAMES_NEED.fullmatch(name) and not _WRITES.fullmatch(name))
        ignored = bool(name and not counts and _IGNORED.fullmatch(name))
        skip = ignored and option is not None
        if ignored:
            continue
        value = (_named if counts else _plain)(assigned[2]) if assigned else ""
        yield f"{assigned[1]}={value}" if assigned else _plain(word)


def _named(word: str) -> str:
    """The last part of a path."""
    name = os.path.basename(word.rstrip("/"))
    return _with_content(word, name) if name.endswith(_READ) else name


def _plain(word: str) -> str:
    """A path is what is in its file, or nothing."""
    name = os.path.basename(word)
    if name.endswith(_READ):
        return _with_content(word, name)
    return word if "/" not in word else ""


def _with_content(path: str, name: str) -> str:
    import hashlib

    from slurm_gpumem.files import read_opened

    try:
        handle = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        content = read_opened(handle, most_bytes=_MOST_BYTES)
    except (OSError, ValueError):
        return name  # not there, or none that one can read
    return f"{name}:{hashlib.sha256(content).hexdigest()[:15]}"
