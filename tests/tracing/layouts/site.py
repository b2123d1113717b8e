"""A login node with one layout of file systems: set it up, run a guarded command there, and compare.

Run by `layouts.py` as root in a mount namespace of its own, with a JSON object on standard input; prints one.
Everything is the kernel's own: bind mounts, loop devices, autofs, FUSE, user namespaces.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import stat
import struct
import subprocess
import sys
from typing import Any, Dict, List

UID = GID = 54321
COLLEAGUE, GROUP = 54322, 54400
_NEWUSER = 0x10000000
_LANDLOCK_CREATE_RULESET, _MOUNT_SETATTR = 444, 442


def digest(roots: List[str]) -> Dict[str, Any]:
    """Everything that can be seen of the files below these folders."""
    found: Dict[str, Any] = {}
    for root in roots:
        _add(found, root)
        for folder, folders, files in os.walk(root):
            for name in [*folders, *files]:
                _add(found, os.path.join(folder, name))
    return found


def _add(found: Dict[str, Any], path: str) -> None:
    about = os.lstat(path)
    content = ""
    if stat.S_ISREG(about.st_mode):
        with open(path, "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()
    elif stat.S_ISLNK(about.st_mode):
        content = os.readlink(path)
    attributes = {name: os.getxattr(path, name, follow_symlinks=False).hex() for name in _attributes(path)}
    times = [about.st_mtime_ns, about.st_ctime_ns]
    found[path] = [about.st_mode, about.st_uid, about.st_gid, about.st_nlink, times, content, attributes]


def _attributes(path: str) -> List[str]:
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError:
        return []


def _as_user(words: List[str], spec: Dict[str, Any]) -> List[str]:
    groups = f"--groups={GROUP}" if spec.get("in_group") else "--clear-groups"
    return ["setpriv", f"--reuid={UID}", f"--regid={GID}", groups, *words]


def main() -> None:
    spec = json.loads(sys.stdin.read())
    started: List[subprocess.Popen[bytes]] = []
    try:
        print(json.dumps(_tried(spec, started)))
    finally:
        for process in started:
            process.kill()
        subprocess.run(["sh", "-c", spec["cleanup"]], capture_output=True, check=False)


def _tried(spec: Dict[str, Any], started: List[subprocess.Popen[bytes]]) -> Dict[str, Any]:
    setup = subprocess.run(["bash", "-e", "-c", spec["setup"]], capture_output=True, text=True, check=False)
    if setup.returncode:
        return {"skipped": (setup.stderr or setup.stdout).strip()[-300:]}
    for words in spec.get("daemons", []):
        daemon = subprocess.Popen(words, stdout=subprocess.PIPE)
        started.append(daemon)
        assert daemon.stdout is not None
        if daemon.stdout.readline() != b"ready\n":
            return {"skipped": f"{words[1]} did not start"}
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C", **spec["environment"]}
    # Somebody else's process of the same user, and what it holds.
    alive = ["sh", "-c", "echo; exec sleep 600"]
    outside = subprocess.Popen(_as_user(alive, spec), stdout=subprocess.PIPE)
    started.append(outside)
    assert outside.stdout is not None
    outside.stdout.readline()  # before, it is still root's
    state = _state(outside.pid)
    os.listdir(spec["cwd"])  # the user is there: it is mounted
    watched = [path for path in spec["watched"] if os.path.isdir(path)]
    before = digest(watched)
    seen = _seen(spec)
    report = spec["report"]
    environment["OUTSIDE"] = str(outside.pid)
    guard = [sys.executable, "-I", "-S", spec["start"], report, "64", "--"]
    container = ["bash", "-c", spec["inside"], "container"] if spec["inside"] else []
    done = subprocess.run(
        _as_user([*container, *([] if spec.get("bare") else guard), *spec["command"]], spec),
        cwd=spec["cwd"],
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=spec.get("timeout_s", 120),
        check=False,
        preexec_fn=_without(spec.get("without", "")),
    )
    after = digest(watched)
    changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    return {
        "changed": changed,
        "output": done.stdout,
        "errors": done.stderr[-3000:],
        "code": done.returncode,
        "private": _read(report, "private.json"),
        "written": _read(report, "changed.json"),
        "observed": _read(report, "observed.json"),
        "outside_lives": outside.poll() is None,
        "outside_changed": [_state(outside.pid), state] if _state(outside.pid) != state else [],
        "shm": sorted(os.listdir("/dev/shm")),
        "seen_before": seen,
        "seen_after": _seen(spec),
    }


def _seen(spec: Dict[str, Any]) -> str:
    """What a command of root's shows of the world outside."""
    done = subprocess.run(
        ["bash", "-c", spec.get("seen", "true")], capture_output=True, text=True, check=True
    )
    return done.stdout


def _read(folder: str, name: str) -> Any:
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def _state(pid: int) -> Dict[str, Any]:
    """What others can change of a process."""
    if not os.path.exists(f"/proc/{pid}/limits"):
        return {}
    found: Dict[str, Any] = {}
    for name in ("limits", "oom_score_adj", "timerslack_ns", "cgroup"):
        with open(f"/proc/{pid}/{name}", encoding="ascii") as file:
            found[name] = file.read()
    found["nice"] = os.getpriority(os.PRIO_PROCESS, pid)
    found["cpus"] = sorted(os.sched_getaffinity(pid))
    found["policy"] = os.sched_getscheduler(pid)
    found["ionice"] = subprocess.run(
        ["ionice", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    return found


# -- What a kernel does not allow ----------------------------------------------------------------


def _without(what: str) -> Any:
    """Before the guard starts: no user namespaces, no Landlock either, or no call of a newer kernel."""

    def restrict() -> None:
        if what == "mount_setattr":
            _no_call(_MOUNT_SETATTR)
            return
        _no_user_namespaces()
        if what == "both":
            _no_call(_LANDLOCK_CREATE_RULESET)

    return restrict if what else None


def _no_user_namespaces() -> None:
    """In a user namespace with all numbers of the one outside, which may have none inside."""
    libc = ctypes.CDLL(None, use_errno=True)
    asked_read, asked_write = os.pipe()
    parent = os.getpid()
    helper = os.fork()
    if helper == 0:
        os.close(asked_write)
        os.read(asked_read, 1)
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{parent}/{name}", "w", encoding="ascii") as file:
                file.write("0 0 4294967295")
        os._exit(0)
    if libc.unshare(_NEWUSER):
        os.kill(helper, signal.SIGKILL)
        raise OSError(ctypes.get_errno(), "unshare")
    os.close(asked_write)
    os.waitpid(helper, 0)
    with open("/proc/sys/user/max_user_namespaces", "w", encoding="ascii") as file:
        file.write("0")


def _no_call(number: int) -> None:
    """The kernel answers as one that does not have this call; many containers do the same."""
    program = b"".join(
        struct.pack("HBBI", *line)
        for line in (
            (0x20, 0, 0, 0),
            (0x15, 0, 1, number),
            (0x06, 0, 0, 0x00050000 | 38),
            (0x06, 0, 0, 0x7FFF0000),
        )
    )
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(22, 2, header, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    main()
