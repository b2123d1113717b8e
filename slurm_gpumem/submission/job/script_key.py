"""What names a job without a model: its script and command, less what does not change its memory.

Seeds, learning rates, epochs and where results go are left out; every other number, word and path counts, and
so does the value of each variable that the script reads from the environment, and what programs and
configurations hold that it names: of those that can be read, the folder does not count.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Set

from slurm_gpumem.formats.remembered import ONCE_MARK, SCRIPT_MARK

_IGNORED = re.compile(
    r"(?:.*[-_.])?(?:seed|lr|learning[-_]?rate|min[-_]?lr|weight[-_]?decay|wd|momentum|beta[12]|epochs?|"
    r"num[-_]?train[-_]?epochs|max[-_]?epochs|warmup.*|patience|"
    # Not any name or experiment: experiment=huge often chooses the configuration, --name the model.
    r"(?:wandb|run)[-_]?(?:names?|id|tags?|group)|notes?|project|entity|comment|"
    r"out|output|log|logs|logdir|save|checkpoint|ckpt|resume|cache|"
    r"port|addr|host|log[-_]?every|log[-_]?interval|save[-_]?every|save[-_]?interval)|"
    # Not any steps: those of a rollout or of an unrolled network lie in memory.
    r"(?:(?:max|total|num[-_]?train|train(?:ing)?|eval|save|log(?:ging)?)[-_]?)*(?:steps|iters?|iterations)|"
    # Nor any folder: most are those of data.
    r"(?:.*[-_.])?(?:out(?:put)?|logs?|save|run|exp|experiment|checkpoints?|ckpt|cache|work(?:ing)?|results?|te?mp|"
    r"scratch|wandb|tensorboard|resume|venv|env|conda|home)(?:[-_.].*)?[-_.]?(?:dir|directory|folder|path|root)",
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
# Longer names are no names, and would keep the expressions above busy.
_ASSIGNED = re.compile(r"-{0,2}\+{0,2}([A-Za-z_][\w.-]{0,79})=(.*)", re.DOTALL)
_OPTION = re.compile(r"--?([A-Za-z][\w.-]{0,79})")
_VARIABLE = re.compile(
    r"\$\{oc\.env:(\w+)|\$\{?([A-Za-z_]\w*)|(?:environ(?:\.get)?[\[(]|getenv\()\s*['\"](\w+)"
)
_ALLOCATORS = (
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_ALLOCATOR", "TF_FORCE_GPU_ALLOW_GROWTH",
)  # fmt: skip
"""What frameworks read themselves, and what changes how much they take."""
_QUOTES = re.compile(r"['\"\\]")
_UNQUOTED = re.compile(r"[;&|()]+|[^\s;&|()]+")
_REDIRECTED = re.compile(r"[0-9&]*>>?\|?&?(.*)", re.DOTALL)
_NOT_THE_USERS = re.compile(
    r"SLURM_.*|HOME|USER|LOGNAME|(?:LD_LIBRARY_|PYTHON|MAN)?PATH|PWD|TMPDIR|HOSTNAME|SHELL|BASH.*|RANDOM|CONDA_.*|CUDA_VISIBLE_DEVICES"
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
    if reads_its_task(text, command):
        return "its script is the same for every task, and does not say what runs"
    return ""


def reads_its_task(text: str, command: Sequence[str]) -> bool:
    """Whether what it runs is in a file, as submitit, Hydra and Nextflow do: alike in an array at most."""
    return any(re.search(_READS_ITS_TASK, one) for one in (text, " ".join(command)))


def key_of_one_submission() -> str:
    """A word that no other submission has, and that nothing is remembered by."""
    return f"{ONCE_MARK}{os.urandom(7).hex()}"


def script_key(
    text: str,
    args: Sequence[str],
    environ: Mapping[str, str],
    *,
    folder: str = "",
    ranks: int = 1,
    named: Optional[List[str]] = None,
) -> str:
    """A word for all runs of this script that need the same memory; `folder` is where it starts, by --chdir.

    `ranks`: its tasks on one node, each of which has memory of its own. What the files hold that it names is
    added to `named`.
    """
    import hashlib

    words = _Words(environ, folder, [] if named is None else named)
    # Of one that is too long to be taken apart while somebody waits, all of it counts.
    parts: List[str] = [text] if len(text) > _MOST_BYTES else []
    for line in text.split("\n") if not parts else ():
        if line.strip() and not line.lstrip().startswith("#"):
            parts += [*words.lasting(_split(line)), "\n"]
    parts += ["\0", *words.lasting(args), "\0"]
    words.read(text)
    values = [
        f"{name}={environ[name]}" for name in sorted({*words.variables, *_ALLOCATORS}) if name in environ
    ]
    parts += words.lasting(values)
    if ranks > 1:
        parts += ["\0", str(ranks)]
    joined = "\x1f".join(parts).encode("utf-8", "surrogateescape")
    return SCRIPT_MARK + hashlib.sha256(joined).hexdigest()[:15]


def _split(line: str) -> List[str]:
    # Only behind a blank a # begins a comment, which shlex does not know: ${name##*/}.
    for end in (*(comment.start() for comment in re.finditer(r"\s#", line)), len(line)):
        part = line[:end]
        if not _QUOTES.search(part):
            return _UNQUOTED.findall(part)  # much faster: scripts may have thousands of lines
        import shlex

        words = shlex.shlex(part, posix=True, punctuation_chars=";&|()")
        words.whitespace_split, words.commenters = True, ""
        with suppress(ValueError):  # the # stands within quotes
            return list(words)
    return line.split()  # a quote that goes on in the next line


class _Words:
    """The words of a script in their order: what it assigns and enters counts for those that follow."""

    def __init__(self, environ: Mapping[str, str], folder: str, named: List[str]) -> None:
        self._named_files = named
        mine = {
            name: value
            for name, value in environ.items()
            if name in ("HOME", "USER") or not _NOT_THE_USERS.fullmatch(name)
        }
        here = ""
        with suppress(OSError):  # a folder that was removed: sbatch says so
            here = os.getcwd()
        self._folder = os.path.join(here, folder)
        self._values: Dict[str, str] = {**mine, "SLURM_SUBMIT_DIR": here, "PWD": self._folder}
        self.variables: Set[str] = set()
        """Those that the script and the files that it names read."""

    def read(self, text: str) -> None:
        """Note which variables this program or configuration reads."""
        for names in _VARIABLE.findall(text):
            self.variables.update(name for name in names if name and not _NOT_THE_USERS.fullmatch(name))

    def lasting(self, words: Sequence[str]) -> Iterator[str]:
        """The words without those that may differ from run to run."""
        ignored = counts = False
        before = ""
        for word in words:
            last, before = before, word
            option, assigned = _OPTION.fullmatch(word), _ASSIGNED.fullmatch(word)
            redirected = _REDIRECTED.fullmatch(word)
            if redirected:
                ignored, counts = not redirected[1], False
                continue
            if ignored and not word.startswith("-"):
                ignored = False
                # --resume often has no value: the program or configuration may follow.
                if _WRITES.fullmatch(last.lstrip("-")) or not word.endswith(_READ):
                    continue
            if len(word.split()) > 1:  # sh -c "python train.py"
                yield from self.lasting(_split(word))
                continue
            if last in ("cd", "pushd"):
                self._folder = os.path.join(self._folder, self._expanded(word))
                continue
            if last == "-m":
                yield self._module(word)
                continue
            if counts and not word.startswith("-"):
                counts = False
                yield self._named(word)
                continue
            name = option[1] if option else assigned[1] if assigned else ""
            counts = bool(name and _NAMES_NEED.fullmatch(name) and not _WRITES.fullmatch(name))
            left_out = bool(name and not counts and _IGNORED.fullmatch(name))
            ignored = left_out and option is not None
            if assigned and not word.startswith(("-", "+")):
                self._values[assigned[1]] = self._expanded(assigned[2])
            if left_out:
                continue
            value = (self._named if counts else self._plain)(assigned[2]) if assigned else ""
            yield f"{assigned[1]}={value}" if assigned else self._plain(word)

    def _expanded(self, word: str) -> str:
        def value(found: re.Match[str]) -> str:
            return self._values.get(found[1] or found[2], found[0])

        # A \0, which no path has, is an error to what looks up ~user.
        return os.path.expanduser(re.sub(r"\$(?:\{(\w+)\}|(\w+))", value, word).replace("\0", ""))

    def _named(self, word: str) -> str:
        """A name or a path, whatever variables it is written with."""
        name = self._expanded(word).rstrip("/")
        return self._plain(word) if name.endswith(_READ) else name

    def _plain(self, word: str) -> str:
        """What is in a file; of other paths, and of files that nobody can read here, where they are."""
        path = self._expanded(word).partition(">")[0]
        if path.endswith(_READ):
            return self._content(path) or os.path.normpath(os.path.join(self._folder, path))
        if path.startswith(("./", "../")):
            return os.path.normpath(os.path.join(self._folder, path))
        return word

    def _module(self, word: str) -> str:
        """What is in a module beside the script; an installed one by its name."""
        path = word.replace(".", "/")
        found = self._content(f"{path}.py") or self._content(f"{path}/__main__.py")
        return f"{word} {found}"

    def _content(self, path: str) -> str:
        import hashlib

        from slurm_gpumem.files import read_opened

        try:
            handle = os.open(os.path.join(self._folder, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            content = read_opened(handle, most_bytes=_MOST_BYTES)
        except (OSError, ValueError):
            return ""  # not there, or none that one can read
        text = content.decode("utf-8", "replace")
        self._named_files.append(text)
        self.read(text)
        return f"{os.path.basename(path)}:{hashlib.sha256(content).hexdigest()[:15]}"
