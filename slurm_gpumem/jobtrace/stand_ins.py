"""Programs that take the place of Slurm's, of MPI's launchers and of nvidia-smi while a script is traced.

They are found first: by the PATH, and in bash by functions of their names, since `module load` and
`conda activate` put other folders before ours. Each of them runs `stand_in.py`.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Dict

from slurm_gpumem.jobtrace.stand_in import ANSWERS

_PROGRAM = str(Path(__file__).resolve().with_name("stand_in.py"))
_FOLDER = "bin"


def install(folder: Path, environ: Dict[str, str]) -> Dict[str, str]:
    """Write the programs below `folder`; the environment in which they are found first."""
    programs = folder / _FOLDER
    programs.mkdir()
    for name in ANSWERS:
        path = programs / name
        path.write_text(f'#!/bin/sh\nexec {_call(name)} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
    startup = folder / "bash_env"
    startup.write_text(_bash_startup(str(programs), environ.get("BASH_ENV", "")), encoding="utf-8")
    nowhere = folder / "slurm.conf"
    nowhere.write_text(
        "# While a script is traced, Slurm's own programs find no cluster.\n", encoding="ascii"
    )
    return {
        **environ,
        "PATH": f"{programs}{os.pathsep}{environ.get('PATH', os.defpath)}",
        "BASH_ENV": str(startup),
        "SLURM_CONF": str(nowhere),
    }


def _call(name: str) -> str:
    return f"{shlex.quote(sys.executable)} -I {shlex.quote(_PROGRAM)} {name}"


def _bash_startup(programs: str, users_own: str) -> str:
    """What every bash of the script reads first: the user's own file, our functions, our folder in front."""
    quoted = shlex.quote(programs)
    lines = [f"[ -r {shlex.quote(users_own)} ] && . {shlex.quote(users_own)}"] if users_own else []
    for name in ANSWERS:
        lines += [f'{name}() {{ {_call(name)} "$@"; }}', f"export -f {name}"]
    # Before each command, since `exec srun` and `timeout 1h srun` look for programs, not for functions.
    keep = f"case $PATH in {quoted}:*) ;; *) PATH={quoted}:$PATH ;; esac"
    lines += ["set -o functrace", f"trap {shlex.quote(keep)} DEBUG"]
    return "\n".join([*lines, ""])
