"""Run a command so that it changes nothing outside: `python -I -S start.py REPORT MEGABYTES -- COMMAND`.

REPORT is the one folder that is shared with the outside. How the command was kept from everything else is
written into REPORT/private.json: "overlay", "landlock", or "none", where it was not run. MEGABYTES bound what
it may write into its private copies.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Dict, List, NoReturn

if __name__ == "__main__":
    # Started by path, in somebody's environment: the package is where this file is.
    _root = os.path.abspath(__file__)
    for _ in range(4):
        _root = os.path.dirname(_root)
    sys.path.insert(0, _root)

from slurm_gpumem.tracing.guard import private_world, restricted, seccomp
from slurm_gpumem.tracing.guard.leftovers import remove
from slurm_gpumem.tracing.guard.syscalls import PDEATHSIG, SUBREAPER, give_up_capabilities, prctl

NOT_RUN = 125
LEFT = "GPUMEM_TRACE_LEFT"
"""The variable with folders that go with the trace."""
_MOST_CHANGED = 300


def main(arguments: List[str]) -> int:
    """The command's exit code, as a shell has it."""
    report, megabytes, command = os.path.realpath(arguments[0]), int(arguments[1]), arguments[3:]
    starter = os.getppid()
    left = [report, *filter(None, os.environ.pop(LEFT, "").split(os.pathsep))]
    prctl(PDEATHSIG, int(signal.SIGTERM))
    try:
        return _run(report, megabytes, command)
    finally:
        if os.getppid() != starter:
            for folder in left:  # whoever would remove them is gone
                remove(folder)


def _run(report: str, megabytes: int, command: List[str]) -> int:
    read_end, write_end = os.pipe()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper = os.fork()
    if keeper == 0:
        os.close(read_end)
        os._exit(_in_private_world(report, megabytes, command, write_end))
    os.close(write_end)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(keeper, signal.SIGTERM))
    with open(read_end, "rb") as answer:
        why = answer.read().decode(errors="replace")
    _, status = os.waitpid(keeper, 0)
    if not why:
        return _shell_code(status)
    return _restricted(report, command, why)


# -- In a private world --------------------------------------------------------------------------


def _in_private_world(report: str, megabytes: int, command: List[str], told: int) -> int:
    """In a process that ends with it: namespaces cannot be left again."""
    here = os.getcwd()
    try:
        refused = seccomp.program(alone=False)
        world = private_world.enter(report, megabytes, command)
        seccomp.install(refused)
        os.chdir(here)
    except OSError as error:
        os.write(told, str(error).encode() or b"refused")
        return NOT_RUN
    _write(report, "private.json", {"files": "overlay", "network": "namespace", "why": ""})
    prctl(PDEATHSIG, int(signal.SIGTERM))
    # The first process in a process namespace is its init: when it ends, so does everything in it.
    child = os.fork()
    if child == 0:
        os._exit(_first_process(command, told))
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    os.close(told)
    _, status = os.waitpid(child, 0)
    _write(report, "changed.json", world.copies.changed(world.base, _MOST_CHANGED))
    return _shell_code(status)


def _first_process(command: List[str], told: int) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    prctl(PDEATHSIG, int(signal.SIGKILL))
    private_world.own_processes()
    give_up_capabilities()
    child = os.fork()
    if child == 0:
        os.setsid()  # "kill 0", as many scripts end with, is for the script's processes
        _become(command)
    os.close(told)
    while True:
        pid, status = os.wait()
        if pid == child:
            return _shell_code(status)


# -- Where only refusing is possible -------------------------------------------------------------


def _restricted(report: str, command: List[str], why: str) -> int:
    """Run the command where it may write to one folder; end with it whatever it has started."""
    scratch = os.path.join(report, "tmp")
    os.mkdir(scratch)
    prctl(SUBREAPER, 1)
    read_end, write_end = os.pipe()
    go_on, let_go = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(let_go)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Many programs need a folder for temporary files.
        os.environ["TMPDIR"] = scratch
        try:
            restricted.restrict([report])
        except OSError as error:
            os.write(write_end, str(error).encode() or b"refused")
            os._exit(NOT_RUN)
        os.close(write_end)
        os.read(go_on, 1)  # until what it can do is written down
        _become(command)
    os.close(write_end)

    def end(*_: object) -> None:
        _end_descendants()
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    with open(read_end, "rb") as answer:
        neither = answer.read().decode(errors="replace")
    files = "none" if neither else "landlock"
    _write(
        report,
        "private.json",
        {"files": files, "network": files, "why": "; ".join(filter(None, (why, neither)))},
    )
    os.close(let_go)
    while True:
        pid, status = os.wait()
        if pid == child:
            _end_descendants()
            return _shell_code(status)


def _end_descendants() -> None:
    """Again and again, since what starts others may be faster than one look."""
    while True:
        found = _descendants(os.getpid())
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        try:
            while os.waitpid(-1, 0 if found else os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def _descendants(parent: int) -> List[int]:
    children: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    above = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(above, []).append(int(name))
    found, waiting = [], [parent]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


# -- Both ----------------------------------------------------------------------------------------


def _shell_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _write(report: str, name: str, value: object) -> None:
    """Whole or not at all. The command may have put anything in its place: a FIFO would keep us waiting."""
    path = os.path.join(report, name)
    try:
        if os.path.lexists(path + ".new"):
            os.unlink(path + ".new")
        handle = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(value, file)
        os.replace(path + ".new", path)
    except OSError as error:
        sys.stderr.write(f"{path}: {error.strerror}\n")


def _become(command: List[str]) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
