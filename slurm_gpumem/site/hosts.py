"""Ask a host what it has of our hooks and files.

The probe travels as text on stdin to `sh`, so that a node needs neither our package nor our files.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from slurm_gpumem.site import probe, probe_files, probe_host, probe_node

_PYTHONS = "python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9"
_SHELL = """PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
for python in {pythons}; do
    "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || continue
    exec "$python" -I - <<'GPUMEM_PROBE'
{program}
GPUMEM_PROBE
done
echo '{mark}{{"faults":[["no-package","no Python 3.9 or newer on the PATH"]]}}'
"""

_FUTURE = "from __future__ import annotations\n"
_BETWEEN_PARTS = re.compile(
    r"^from (?:__future__|slurm_gpumem\.site\.probe\w*) import (?:\([^)]*\)|.*)\n", re.MULTILINE
)
"""What the parts of the probe import of each other; on a node they are one file."""


@dataclass(frozen=True)
class Question:
    """What to look at on a host."""

    hooks: Tuple[Tuple[str, str], ...] = ()
    """Settings of slurm.conf and their programs: ("Prolog", "/etc/slurm/gpumem/prolog.sh")."""
    files: Tuple[str, ...] = ()
    """Files that only trusted users may change."""
    devices: Tuple[str, ...] = ()
    """Device files of gres.conf."""
    trusted_uids: Tuple[int, ...] = (0,)
    trusted_gids: Tuple[int, ...] = (0,)
    slurm_uid: Optional[int] = None


@dataclass(frozen=True)
class HostReport:
    """What a host answered."""

    name: str
    """The node as Slurm calls it; "" for the host that doctor runs on."""
    faults: Tuple[Tuple[str, str], ...] = ()
    """Check and what is wrong."""
    unseen: Tuple[str, ...] = ()
    """What could not be looked at, and why."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    clock_s: float = 0.0
    """How far its clock is ahead of ours; more than the time that asking took, or 0."""


class Silent(NamedTuple):
    """A node that gave no answer, and why."""

    name: str
    why: str


def ask_here(question: Question, timeout_s: float = 60.0) -> Union[HostReport, Silent]:
    """The report on this host."""
    return ask_host(["/bin/sh"], "", question, timeout_s)


def takes_jobs(state: str) -> bool:
    """Whether Slurm gives jobs to a node in this state, also by waking it: MIXED, not IDLE+DRAIN."""
    words = _words(state)
    mute = not words & _ASLEEP and ("NOT_RESPONDING" in words or "*" in state)
    return bool(words & {"IDLE", "MIXED", "ALLOCATED", "COMPLETING"}) and not (words & _OUT_OF_USE or mute)


def _words(state: str) -> Set[str]:
    signs = {"~": "+POWERED_DOWN", "#": "+POWERING_UP", "%": "+POWERING_DOWN"}
    return set(re.split(r"[+*!$@^-]+", "".join(signs.get(sign, sign) for sign in state.upper())))


_OUT_OF_USE = {"DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL", "INVALID_REG"}
_ASLEEP = {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP"}
"""Of a site that saves power: Slurm wakes such a node when a job needs it."""


def ask_host(
    argv: Sequence[str], name: str, question: Question, timeout_s: float
) -> Union[HostReport, Silent]:
    """The report of the host on which this command starts a shell with our stdin."""
    asked = time.time()
    try:
        done = subprocess.run(
            argv,
            input=_text(question),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        return Silent(name, f"{argv[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Silent(name, f"no answer within {timeout_s:.0f} s")
    answered = time.time()
    for line in done.stdout.splitlines():
        if line.startswith(probe.MARK):
            return _report(name, line[len(probe.MARK) :], asked, answered)
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return Silent(name, said[-1] if said else f"{argv[0]} ended with {done.returncode} and said nothing")


def _text(question: Question) -> str:
    # As JSON in a string of Python: no path of a site can end the string or the program.
    call = f"\nmain(json.loads({json.dumps(json.dumps(vars(question)))}))\n"
    parts = (probe_files, probe_host, probe_node, probe)
    program = _FUTURE + "".join(_BETWEEN_PARTS.sub("", inspect.getsource(part)) for part in parts) + call
    return _SHELL.format(pythons=_PYTHONS, program=program, mark=probe.MARK)


def _report(name: str, text: str, asked: float, answered: float) -> Union[HostReport, Silent]:
    try:
        answer: Dict[str, Any] = json.loads(text)
        faults = tuple((str(check), str(what)) for check, what in answer["faults"])
    except (ValueError, KeyError, TypeError):
        return Silent(name, "its answer cannot be read")
    clock = float(answer.get("time", asked))
    ahead = clock - answered if clock > answered else min(0.0, clock - asked)
    return HostReport(name, faults, tuple(answer.get("unseen", ())), answer.get("facts", {}), ahead)
