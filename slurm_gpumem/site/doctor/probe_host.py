"""One host as its hooks see it: who may change their files, what they run, and the package they load."""

from __future__ import annotations

import contextlib
import glob
import grp
import hashlib
import json
import os
import pwd
import re
import shlex
import stat
import subprocess
from typing import Any, Dict, Iterator, List, Optional, Tuple

import slurm_gpumem
from slurm_gpumem.site.doctor.hosts import Question

# What the probe of a host needs to know of files, programs and users.

Settings = Dict[str, str]
TIMEOUT_S = 10.0


def lineage(path: str) -> Iterator[str]:
    """The path and all folders above it."""
    yield path
    while os.path.dirname(path) != path:
        path = os.path.dirname(path)
        yield path


def is_hidden(path: str) -> bool:
    """Whether we may not even see if something is there: a folder above it is closed to us."""
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def is_program(path: str) -> bool:
    """Whether root could execute it."""
    return os.path.isfile(path) and bool(os.stat(path).st_mode & 0o111)


def parse_settings(text: str) -> Settings:
    """The plain assignments of a shell file: `name=value` at the beginning of a line."""
    found: Settings = {}
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            for word in shlex.split(line, comments=True):
                name, equals, value = word.partition("=")
                if not equals or not re.fullmatch(r"[a-z_]+", name):
                    break
                found[name] = value
    return found


def read_text(path: str) -> Optional[str]:
    """At most 1 MiB of a file; None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return file.read(1 << 20)
    except OSError:
        return None


def digest(text: str) -> str:
    """A short name for a text, equal where the texts are."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def run(
    argv: List[str], env: Optional[Dict[str, str]] = None, uid: Optional[int] = None
) -> Optional[subprocess.CompletedProcess[str]]:
    """As hooks run programs, with nothing of our environment; None when it does not end or start.

    As another user where that is asked for and we are root.
    """
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    kept = {key: value for key, value in (env or {}).items() if value}
    try:
        return subprocess.run(
            argv,
            env={"PATH": path, **kept},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
            cwd="/",
            preexec_fn=(lambda: become(uid)) if uid is not None and os.geteuid() == 0 else None,
        )
    except (OSError, subprocess.SubprocessError):
        return None


def become(uid: int) -> None:
    """Give up root for a user, with the user's groups."""
    try:
        entry = pwd.getpwuid(uid)
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
    except KeyError:
        os.setgroups([])
        os.setgid(uid)
    os.setuid(uid)


def user_name(uid: int) -> str:
    """A user for people."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def group_name(gid: int) -> str:
    """A group for people."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


RUN_AS_ROOT = ("Prolog", "Epilog")
RUN_AS_SLURM = ("EpilogSlurmctld", "PrologSlurmctld")
NOBODY = 65534
_READ, _EXECUTE = os.R_OK, os.X_OK
_PARTS = ("end_exports.sh", "hand_over.sh", "let_go.sh", "log_check.sh")
_MODULE = re.compile(r"(?:\s-m|\brun|\bfrom) (slurm_gpumem[\w.]*)")
_PACKAGE = """
import importlib.util, json, os, sys
import slurm_gpumem
def has(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
print(json.dumps({
    "version": slurm_gpumem.__version__,
    "folder": os.path.dirname(os.path.realpath(slurm_gpumem.__file__)),
    "missing": [name for name in sys.argv[1:] if not has(name)],
}))
"""


class Host:
    """The examination of this host: faults as (check, what), and facts."""

    def __init__(self, question: Question) -> None:
        self.trusted = set(question.trusted_uids)
        self.trusted_gids = set(question.trusted_gids)
        self.slurm_uid = question.slurm_uid
        self.faults: List[Tuple[str, str]] = []
        self.unseen: List[str] = []
        self.facts: Dict[str, Any] = {}
        self._places: Dict[str, bool] = {}

    def fault(self, check: str, what: str) -> None:
        if (check, what) not in self.faults:
            self.faults.append((check, what))

    def is_there(self, path: str) -> Optional[bool]:
        """Whether something is there; None, and it is said, where we may not look."""
        if is_hidden(path):
            self.may_not_look(path)
            return None
        return os.path.exists(path)

    def may_not_look(self, what: str) -> None:
        """Something that only another user, most often root, could find out."""
        self.fault("may-not-look", f"{what}: unknown (may not look; run as root)")

    # -- Owners and modes ------------------------------------------------------------------------

    def is_safe(self, *paths: str) -> bool:
        """Whether only trusted users can change what is there; says what else."""
        both = [place for path in paths for place in (os.path.abspath(path), os.path.realpath(path))]
        places = dict.fromkeys(above for place in both for above in lineage(place))
        unsafe = [place for place in places if not self._is_safe_place(place)]
        return not unsafe

    def _is_safe_place(self, place: str) -> bool:
        if place in self._places:
            return self._places[place]
        self._places[place] = False
        try:
            about = os.lstat(place)
        except FileNotFoundError:
            return False
        except OSError as error:
            self.unseen.append(f"{place}: {error.strerror}")
            return False
        mode, folder = stat.S_IMODE(about.st_mode), stat.S_ISDIR(about.st_mode)
        shown = f"mode {mode:04o}"
        # In a sticky folder nobody replaces what belongs to root; a link has no mode, a device no content.
        fixed = stat.S_ISLNK(about.st_mode) or stat.S_ISCHR(about.st_mode) or (folder and mode & stat.S_ISVTX)
        if about.st_uid not in self.trusted:
            self.fault("not-only-root", f"{place} belongs to {user_name(about.st_uid)}")
        elif mode & stat.S_IWOTH and not fixed:
            self.fault("not-only-root", f"everybody can change {place} ({shown})")
        elif mode & stat.S_IWGRP and not fixed and not (folder and about.st_gid in self.trusted_gids):
            self.fault("group-may-write", f"group {group_name(about.st_gid)} can change {place} ({shown})")
        else:
            self._places[place] = True
        return self._places[place]

    def may(self, uid: Optional[int], how: int, path: str) -> bool:
        """Whether a user may do that with a file; True where that cannot be tried."""
        if uid is None or uid == os.geteuid():
            return os.access(path, how)
        if os.geteuid() != 0:
            return True
        child = os.fork()
        if child == 0:
            answer = 1
            with contextlib.suppress(BaseException):
                become(uid)
                answer = 0 if os.access(path, how) else 1
            os._exit(answer)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    # -- Hooks -----------------------------------------------------------------------------------

    def hook(self, key: str, path: str) -> Optional[Settings]:
        """One hook of slurm.conf; its settings when it is ours and can be run."""
        named = f"{key}={path}"
        if is_hidden(path) and key not in (*RUN_AS_ROOT, *RUN_AS_SLURM):
            self.fault("hook-not-run", f"{named}: users cannot execute it")
            return None
        there = self.is_there(path)
        if not there:
            if there is False:
                self.fault("hook-missing", f"{named} does not exist")
            return None
        safe = self.is_safe(path)
        if not self._runs(key, named, path):
            return None
        text = read_text(path)
        if text is None:
            self.may_not_look(path)
            return None
        self._shebang(named, text)
        if "gpumem" not in text:
            return None
        self.facts.setdefault("ours", []).append(key)
        self.facts.setdefault("files", {})[os.path.basename(path)] = digest(text)
        parts = [self._part(key, path, name) for name in _PARTS if name in text]
        return self._settings(key, path, text + "".join(parts)) if safe else None

    def _part(self, key: str, path: str, name: str) -> str:
        """What a hook sources beside it: its text, when it is there and only root's."""
        beside = os.path.join(os.path.dirname(path), name)
        if not os.path.exists(beside):
            self.fault("hook-older", f"{key} needs {beside}, which does not exist")
            return ""
        text = (read_text(beside) if self.is_safe(beside) else None) or ""
        self.facts.setdefault("files", {})[name] = digest(text)
        return text

    def _runs(self, key: str, named: str, path: str) -> bool:
        if key in RUN_AS_ROOT:
            runs = is_program(path)
            who = "root"
        else:
            uid = self.slurm_uid if key in RUN_AS_SLURM else NOBODY
            who = "users" if uid == NOBODY else user_name(uid or 0)
            runs = os.path.isfile(path) and self.may(uid, _READ | _EXECUTE, path)
        if not runs:
            self.fault("hook-not-run", f"{named}: {who} cannot execute it")
        return runs

    def _shebang(self, named: str, text: str) -> None:
        first = text.split("\n", 1)[0]
        if not first.startswith("#!"):
            return
        words = first[2:].split()
        if first.endswith("\r"):
            self.fault("hook-not-run", f"{named} has the line ends of Windows")
        elif words and self.is_there(words[0]) is False:
            self.fault("hook-not-run", f"{named} needs {words[0]}, which is not there")

    def _settings(self, key: str, path: str, text: str) -> Settings:
        found = parse_settings(text)
        beside = os.path.join(os.path.dirname(path), "hooks.conf")
        if os.path.exists(beside):
            if not self.is_safe(beside):
                return {}
            if key not in RUN_AS_ROOT and not self.may(self._runner(key), _READ, beside):
                self.fault("cannot-read", f"{key} cannot read {beside} as {user_name(self._runner(key))}")
            conf = read_text(beside)
            if conf is None:
                # Without it the hook's own defaults would be taken for the site's settings.
                self.may_not_look(beside)
                return {}
            self.facts.setdefault("files", {})["hooks.conf"] = digest(conf)
            found.update(parse_settings(conf))
        after = found.get("next_" + re.sub(r"(?<!^)(?=[A-Z])", "_", key).lower(), "")
        if after and self.is_there(after) is not None:
            if not is_program(after):
                self.fault("next-hook", f"{after}, which {os.path.basename(path)} ends with, cannot be run")
            self.is_safe(after)
        found["modules"] = " ".join(sorted(set(_MODULE.findall(text))))
        return found

    def _runner(self, key: str) -> int:
        return 0 if key in RUN_AS_ROOT else (self.slurm_uid or 0) if key in RUN_AS_SLURM else NOBODY

    # -- The interpreter and the package ---------------------------------------------------------

    def interpreter(self, key: str, settings: Settings) -> Optional[str]:
        """The hooks' Python, when it has the package; None and a fault otherwise."""
        python = settings.get("python", "")
        if not python or "$" in python:
            return None
        there = self.is_there(python)
        if not there:
            if there is False:
                self.fault("no-package", f"the hooks' interpreter {python} does not exist")
            return None
        if not os.access(python, _EXECUTE):
            if os.geteuid() == 0:
                self.fault("no-package", f"the hooks' interpreter {python} cannot be executed")
            else:
                self.may_not_look(python)
            return None
        if not self.is_safe(python):
            return None
        if not self.may(self._runner(key), _EXECUTE, python):
            self.fault("cannot-read", f"{key} cannot run {python} as {user_name(self._runner(key))}")
            return None
        modules = [name for name in settings.get("modules", "").split() if name != "slurm_gpumem"]
        # As nobody: whether only root can change the package is checked afterwards.
        answer = self.run_python(python, _PACKAGE, *modules, uid=NOBODY)
        if answer is None:
            return None
        self.facts["version"] = answer["version"]
        for name in answer["missing"]:
            self.fault(
                "hook-older", f"{key} runs {name}, which slurm_gpumem {answer['version']} does not have"
            )
        package = answer["folder"]
        inside = [
            os.path.join(top, name) for top, below, names in os.walk(package) for name in [*below, *names]
        ]
        # Python runs these at each start.
        inside += glob.glob(os.path.join(os.path.dirname(package), "*.pth"))
        safe = self.is_safe(package, *inside)
        source = os.path.join(answer["folder"], "__init__.py")
        if not self.may(self._runner(key), _READ, source):
            self.fault("cannot-read", f"{key} cannot read {source} as {user_name(self._runner(key))}")
        return python if safe else None

    def run_python(
        self, python: str, program: str, *args: str, uid: Optional[int] = None
    ) -> Optional[Dict[str, Any]]:
        """The JSON that a program of ours prints there; None and a fault where it does not."""
        # Where nobody may not even look, no user can have put anything.
        other = uid if uid is not None and self.may(uid, _EXECUTE, python) else None
        done = run([python, "-I", "-c", program, *args], uid=other)
        if done is None:
            self.fault("no-package", f"{python} did not start, or not answer within {TIMEOUT_S:.0f} s")
            return None
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            if os.geteuid() == 0:
                self.fault("no-package", f"{python} cannot load slurm_gpumem: {reason}")
            else:
                # The package may be where only root looks.
                self.may_not_look(f"whether {python} loads slurm_gpumem ({reason})")
            return None
        answer: Dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer

    def filter_python(self, python: str, conf: str) -> None:
        """What plain sbatch runs: whether it starts for a user, and is this version's."""
        named = f"{python} of {conf}"
        about = os.stat(conf) if os.path.exists(conf) else None
        if about and (about.st_uid not in (0, os.geteuid()) or about.st_mode & 0o022):
            self.fault("no-filter", f"{conf} is not root's, or others may write it")
        if about and not self.may(NOBODY, _READ, conf):
            self.fault("no-filter", f"{conf} cannot be read by {user_name(NOBODY)}: its Python is not taken")
        if not re.fullmatch(r"/[\w/.+@-]+", python, re.ASCII) or not is_program(python):
            self.fault("no-filter", f"{named} is not there, cannot be executed or is no whole path")
            return
        if not self.is_safe(python):
            return
        done = run([python, "-I", "-m", "slurm_gpumem.cli.cli_filter", "--version"], uid=NOBODY)
        if done is None:
            self.fault("no-filter", f"{named} does not start for {user_name(NOBODY)}")
        elif done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            self.fault("no-filter", f"{named} cannot be run: {last}")
        elif done.stdout.strip() != slurm_gpumem.__version__:
            self.fault("no-filter", f"{named} has slurm_gpumem {done.stdout.strip()}")

    # -- The site's file --------------------------------------------------------------------------

    def site_file(self, key: str, settings: Settings) -> None:
        """The gpumem.toml that the hooks read."""
        path = settings.get("site_config", "")
        if not path or "$" in path:
            return
        self.facts["site_config"] = path
        if self.is_there(path) is None:
            return
        if not os.path.isfile(path):
            self.fault("site-file-missing", f"{path}, which the hooks read, does not exist")
            return
        self.facts.setdefault("files", {})["gpumem.toml"] = digest(read_text(path) or "")
        self.is_safe(path)
        if not self.may(self._runner(key), _READ, path):
            self.fault("cannot-read", f"{key} cannot read {path} as {user_name(self._runner(key))}")
