"""Examine the hooks and files on one host, for `gpumem doctor`.

This file also runs as text on the nodes, through `sh`, with whatever Python they have: it imports only
the standard library, because a node whose package is missing must still be able to say so. It prints
JSON; `site.hosts` reads it. It looks and runs nothing that somebody else than root could have changed.
"""

from __future__ import annotations

import contextlib
import ctypes
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
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

MARK = "gpumem-probe/1 "
"""The line with the answer begins so: a login shell may print something before it."""
RUN_AS_ROOT = ("Prolog", "Epilog")
RUN_AS_SLURM = ("EpilogSlurmctld", "PrologSlurmctld")
_TIMEOUT_S = 10.0
_NOBODY = 65534
_UNIT = "/etc/systemd/system/multi-user.target.wants/gpumem-sampler.service"
_LIMIT_FUNCTION = "nvmlDeviceSetMemoryLimits_v1"
_LEAST_FREE = 0.01
_READ, _EXECUTE, _WRITE = os.R_OK, os.X_OK, os.W_OK
_PARTS = ("end_exports.sh", "hand_over.sh", "let_go.sh", "log_check.sh")
_END_LIBRARY = "libgpumem_end.so"
_PACKAGED = "/usr/libexec/slurm-gpumem"
_MODULE = re.compile(r"(?:\s-m|\brun) (slurm_gpumem[\w.]*)")
Settings = Dict[str, str]


class Host:
    """The examination of this host: faults as (check, what), and facts to compare with other hosts."""

    def __init__(self, question: Dict[str, Any]) -> None:
        self.trusted = set(question["trusted_uids"])
        self.trusted_gids = set(question["trusted_gids"])
        self.slurm_uid: Optional[int] = question["slurm_uid"]
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
            uid = self.slurm_uid if key in RUN_AS_SLURM else _NOBODY
            who = "users" if uid == _NOBODY else user_name(uid or 0)
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
        return 0 if key in RUN_AS_ROOT else (self.slurm_uid or 0) if key in RUN_AS_SLURM else _NOBODY

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
        answer = self._run_python(python, _PACKAGE, *modules, uid=_NOBODY)
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

    def _run_python(
        self, python: str, program: str, *args: str, uid: Optional[int] = None
    ) -> Optional[Dict[str, Any]]:
        # Where nobody may not even look, no user can have put anything.
        other = uid if uid is not None and self.may(uid, _EXECUTE, python) else None
        done = run([python, "-I", "-c", program, *args], uid=other)
        if done is None:
            self.fault("no-package", f"{python} did not answer within {_TIMEOUT_S:.0f} s")
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

    # -- What a node needs -----------------------------------------------------------------------

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

    def node(self, python: str, settings: Settings, node: Dict[str, Any], hooks: str) -> None:
        """What the Prolog and the sampler will use; `hooks` is their folder."""
        modes = set(node["modes"].split())
        if modes == {"off"}:
            return
        self.spool(node["spool"])
        run_dir = settings.get("run_dir", "")
        if run_dir and "$" not in run_dir and os.path.exists(run_dir):
            self.is_safe(run_dir)
        if modes & {"per-user", "shared"}:
            self.mps(node["mps_control"], "shared" in modes)
            self.end_library(settings.get("end_library", ""), hooks)
        if node["ledger"] is None:
            self.driver()
        if node["driver_limit"]:
            self.driver_limit()
        if node["slurm_bin"] and self.is_there(os.path.join(node["slurm_bin"], "squeue")) is False:
            self.fault("no-commands", f"node.slurm_bin = {node['slurm_bin']} has no squeue")
        if node["prometheus_file"] and self.is_there(os.path.dirname(node["prometheus_file"])) is False:
            self.fault(
                "no-commands", f"the folder of node.prometheus_file = {node['prometheus_file']} is missing"
            )
        self.sampler(python, settings)

    def mps(self, control: str, shared: bool) -> None:
        """The program that starts MPS daemons, and whether it can start one for all users."""
        if self.is_there(control) is None:
            return
        if not is_program(control):
            self.fault("no-mps", f"{control} is not there")
            return
        safe = self.is_safe(control)
        if shared and safe:
            done = run([control, "-h"], env={"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"})
            if done is None or "-multiuser-server" not in done.stdout + done.stderr:
                self.fault("no-shared-mps", f"{control} has no -multiuser-server")

    def end_library(self, named: str, hooks: str) -> None:
        """What the task prolog gives to CUDA programs, where it looks for it."""
        places = [named] if named else [os.path.join(folder, _END_LIBRARY) for folder in (hooks, _PACKAGED)]
        seen = {place: self.is_there(place) for place in places}
        there = [place for place in places if seen[place]]
        if not there:
            if None not in seen.values():
                self.fault("no-end-library", f"{places[0]} is not there")
            return
        if not self.may(_NOBODY, _READ, there[0]):
            self.fault("cannot-read", f"users' programs cannot load {there[0]}")
        if not self.is_safe(there[0]):
            return
        try:
            ctypes.CDLL(there[0])
        except OSError as error:
            self.fault("no-end-library", f"{there[0]} cannot be loaded: {error}")

    def spool(self, path: str) -> None:
        """Whether a record could be written there, by root; a missing one is made by the first job."""
        if os.geteuid() != 0:
            self.unseen.append(f"{path}: only root can try to write there")
            return
        there = next(place for place in lineage(path) if os.path.lexists(place))
        trial = os.path.join(there, f".gpumem-doctor-{os.getpid()}")
        try:
            os.mkdir(trial, 0o700)
            os.rmdir(trial)
        except OSError as error:
            self.fault("spool-unusable", f"node.spool = {path} cannot be written: {there}: {error.strerror}")
            return
        if there == path and stat.S_IMODE(os.stat(path).st_mode) & 0o002:
            # A sticky bit does not help here: a planted record is believed.
            self.fault("not-only-root", f"everybody can write to {path} (the spool)")
        self.is_safe(there)
        room = os.statvfs(there)
        if room.f_blocks and room.f_bavail / room.f_blocks < _LEAST_FREE:
            self.fault("spool-full", f"node.spool = {path}: less than 1 % of its file system is free")
        elif room.f_files and room.f_ffree / room.f_files < _LEAST_FREE:
            self.fault(
                "spool-full", f"node.spool = {path}: less than 1 % of its file system's inodes are free"
            )

    def driver(self) -> None:
        """NVML: without it nothing is measured, and the GPUs' UUIDs are not known."""
        try:
            ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as error:
            self.fault("no-driver", f"NVIDIA's driver library cannot be loaded: {error}")
            return
        query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
        done = run(query)
        if done is None or done.returncode != 0:
            self.fault("no-driver", "nvidia-smi does not answer")
            return
        rows = [line.rpartition(",") for line in done.stdout.splitlines()]
        self.facts["gpus"] = [[name.strip(), int(mib)] for name, _, mib in rows if mib.strip().isdigit()]

    def driver_limit(self) -> None:
        """What the driver needs to limit a job's cgroup: 615 or later, and version 2 of cgroups."""
        try:
            known = hasattr(ctypes.CDLL("libnvidia-ml.so.1"), _LIMIT_FUNCTION)
        except OSError:
            known = False
        if not known:
            self.fault("no-driver-limit", f"NVIDIA's driver library has no {_LIMIT_FUNCTION}")
        if not os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
            self.fault("no-driver-limit", "/sys/fs/cgroup is not cgroup version 2")

    def sampler(self, python: str, settings: Settings) -> None:
        """Jobs without a sampler are not measured."""
        if os.geteuid() != 0:
            return
        run_dir = settings.get("run_dir", "")
        jobs = os.path.join(run_dir, "jobs")
        count = (
            len([name for name in os.listdir(jobs) if name.endswith(".json")]) if os.path.isdir(jobs) else 0
        )
        permanent = os.path.lexists(_UNIT)
        if count == 0 and not permanent:
            return
        env = {"GPUMEM_RUN_DIR": run_dir, "GPUMEM_SITE_CONFIG": settings.get("site_config", "")}
        done = run([python, "-I", "-m", "slurm_gpumem", "node", "status", "--json"], env)
        if done is not None and done.returncode == 0 and json.loads(done.stdout)["sampler"]:
            return
        if permanent:
            self.fault("no-sampler", f"{os.path.basename(_UNIT)} is enabled and no sampler runs")
        else:
            self.fault("no-sampler", f"{count} shared job{'s' if count > 1 else ''} here and no sampler runs")

    def devices(self, paths: List[str]) -> None:
        """The device files of gres.conf."""
        missing = [path for path in paths if self.is_there(path) is False]
        if missing:
            self.fault("no-device", f"{', '.join(missing[:4])} of gres.conf: not on this host")


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
_NODE = """
import json, sys
from slurm_gpumem.config.node import load_node_config
config = load_node_config(sys.argv[1])
names = ("spool", "mps_control", "ledger", "slurm_bin", "prometheus_file")
values = {name: getattr(config, name) for name in names}
values["driver_limit"] = "yes" if getattr(config, "driver_limit", False) else None
values["modes"] = " ".join(config.mps_anywhere())
print(json.dumps({name: None if value is None else str(value) for name, value in values.items()}))
"""


def expanded(hooks: List[List[str]]) -> Iterator[Tuple[str, str]]:
    """Each program of each hook: Slurm takes patterns, too (/etc/slurm/prolog.d/*)."""
    for key, path in hooks:
        found = sorted(glob.glob(path)) if glob.has_magic(path) else []
        yield from ((key, name) for name in found or [path])


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
            timeout=_TIMEOUT_S,
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


def examine(question: Dict[str, Any]) -> Dict[str, Any]:
    """Everything about this host that was asked for."""
    host = Host(question)
    for path in question["files"]:
        host.is_safe(path)
    for key, path in expanded(question["hooks"]):
        settings = host.hook(key, path)
        if not settings:
            continue
        host.site_file(key, settings)
        if key in RUN_AS_SLURM:
            host.facts["state_dir"] = settings.get("state_dir", "")
        # Only these start Python; TaskProlog is plain shell.
        python = host.interpreter(key, settings) if settings["modules"] else None
        site_config = settings.get("site_config", "")
        if python and key == "Prolog":
            node = host._run_python(python, _NODE, site_config)
            if node is not None:
                host.node(python, settings, node, os.path.dirname(path))
    host.devices(question["devices"])
    return {
        "host": os.uname().nodename.partition(".")[0],
        "time": time.time(),
        "faults": host.faults,
        "unseen": sorted(set(host.unseen)),
        "facts": host.facts,
    }


def main(question: Dict[str, Any]) -> int:
    """Print the answer."""
    print(MARK + json.dumps(examine(question)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
