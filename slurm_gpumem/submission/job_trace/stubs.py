"""Programs that take the place of Slurm's, of MPI's launchers and of nvidia-smi while a script is traced.

They are found first: by the PATH, and in bash by functions of their names, since `module load` and
`conda activate` put other folders before ours. Each of them runs `stub.py`. Python and what starts it are
the next of their name on the PATH, with the tracer's folder first in PYTHONPATH whatever the script made of
that.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Dict

from slurm_gpumem.launchers import LAUNCHERS
from slurm_gpumem.submission.job_trace.stub import ANSWERS

_PROGRAM = str(Path(__file__).resolve().with_name("stub.py"))
_FOLDER = "bin"
_PYTHONS = (
    *("python", "python3", *(f"python3.{minor}" for minor in range(9, 16))),
    *(launcher.name for launcher in LAUNCHERS),
)
_NEXT_ON_PATH = """\
case $PYTHONPATH in "$GPUMEM_TRACE_INJECTED"*) ;; *) PYTHONPATH=$GPUMEM_TRACE_INJECTED:$PYTHONPATH ;; esac
export PYTHONPATH
IFS=:
for folder in $PATH; do
  if [ "$folder" != {programs} ] && [ -f "$folder/{name}" ] && [ -x "$folder/{name}" ]; then
    unset IFS
    exec "$folder/{name}" "$@"
  fi
done
echo "{name}: command not found" >&2
exit 127"""


def install(folder: Path, environ: Dict[str, str]) -> Dict[str, str]:
    """Write the programs below `folder`; the environment in which they are found first."""
    answers = {name: f'{_call(name)} "$@"' for name in ANSWERS}
    nowhere = folder / "slurm.conf"
    nowhere.write_text(
        "# While a script is traced, Slurm's own programs find no cluster.\n", encoding="ascii"
    )
    return {**_found_first(folder, environ, answers), "SLURM_CONF": str(nowhere)}


def install_pythons(folder: Path, environ: Dict[str, str]) -> Dict[str, str]:
    """The same for a command that is no batch job: only Python, and what starts it."""
    return _found_first(folder, environ, {})


def _found_first(folder: Path, environ: Dict[str, str], answers: Dict[str, str]) -> Dict[str, str]:
    programs = folder / _FOLDER
    programs.mkdir()
    for name, call in answers.items():
        _program(programs / name, f"exec {call}")
    for name in _PYTHONS:
        _program(programs / name, _NEXT_ON_PATH.format(name=name, programs=shlex.quote(str(programs))))
    startup = folder / "bash_env"
    text = _bash_startup(str(programs), environ.get("BASH_ENV", ""), answers)
    startup.write_text(text, encoding="utf-8")
    path = f"{programs}{os.pathsep}{environ.get('PATH', os.defpath)}"
    return {**environ, "PATH": path, "BASH_ENV": str(startup)}


def _program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)


def _call(name: str) -> str:
    return f"{shlex.quote(sys.executable)} -I {shlex.quote(_PROGRAM)} {name}"


def _bash_startup(programs: str, users_own: str, answers: Dict[str, str]) -> str:
    """What every bash of the script reads first: the user's own file, our functions, our folder in front."""
    quoted = shlex.quote(programs)
    lines = [f"[ -r {shlex.quote(users_own)} ] && . {shlex.quote(users_own)}"] if users_own else []
    for name, call in answers.items():
        lines += [f"{name}() {{ {call}; }}", f"export -f {name}"]
    for name in _PYTHONS:
        lines += [f'{name}() {{ sh {quoted}/{name} "$@"; }}', f"export -f {name}"]
    # Before each command, since `exec srun` and `timeout 1h srun` look for programs, not for functions.
    keep = f"case $PATH in {quoted}:*) ;; *) PATH={quoted}:$PATH ;; esac"
    lines += ["set -o functrace", f"trap {shlex.quote(keep)} DEBUG"]
    return "\n".join([*lines, ""])
