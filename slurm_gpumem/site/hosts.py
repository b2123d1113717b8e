"""Ask hosts what they have of our hooks and files: this one, and the nodes by srun or the site's own command.

The probe travels as text on stdin to `sh`, so that a node needs neither our package nor a file of ours.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from slurm_gpumem.errors import UsageError
from slurm_gpumem.site import probe
from slurm_gpumem.slurm.client import COMMANDS, Commands
from slurm_gpumem.slurm.nodes import Record
from slurm_gpumem.slurm.on_node import shell_on_node

_AT_ONCE = 16
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
    return _ask(["/bin/sh"], "", question, timeout_s, None)


def ask_nodes(
    nodes: Sequence[Tuple[Record, Question]],
    through: Optional[str],
    timeout_s: float,
    commands: Commands = COMMANDS,
) -> Tuple[Tuple[HostReport, ...], Tuple[Silent, ...]]:
    """The reports of these nodes, a few at a time, and the nodes that gave none."""

    def ask(pair: Tuple[Record, Question]) -> Union[HostReport, Silent]:
        node, question = pair
        name, state = node.get("NodeName", ""), node.get("State", "")
        if through is None and not is_up(state):
            asleep = "; it was not woken up to be asked" if takes_jobs(state) else ""
            return Silent(name, f"its state is {state}{asleep}")
        argv = shell_on_node(node, timeout_s) if through is None else through_argv(through, name)
        # srun waits for the node, then for its task.
        return _ask(argv, name, question, 2 * timeout_s, commands.environment)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(ask, nodes))
    return (
        tuple(answer for answer in answers if isinstance(answer, HostReport)),
        tuple(answer for answer in answers if isinstance(answer, Silent)),
    )


def takes_jobs(state: str) -> bool:
    """Whether Slurm gives jobs to a node in this state, also by waking it: MIXED, not IDLE+DRAIN."""
    words = _words(state)
    mute = not words & _ASLEEP and ("NOT_RESPONDING" in words or "*" in state)
    return bool(words & {"IDLE", "MIXED", "ALLOCATED", "COMPLETING"}) and not (words & _OUT_OF_USE or mute)


def is_up(state: str) -> bool:
    """Whether a job there would start at once: it takes jobs and its power is on."""
    return takes_jobs(state) and not _words(state) & _ASLEEP


def _words(state: str) -> Set[str]:
    signs = {"~": "+POWERED_DOWN", "#": "+POWERING_UP", "%": "+POWERING_DOWN"}
    return set(re.split(r"[+*!$@^-]+", "".join(signs.get(sign, sign) for sign in state.upper())))


_OUT_OF_USE = {"DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL", "INVALID_REG"}
_ASLEEP = {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP"}
"""Of a site that saves power: Slurm wakes such a node when a job needs it."""


def through_argv(command: str, node: str) -> List[str]:
    """The site's own way to a node, with {node} replaced; it runs `sh` there."""
    words = shlex.split(command)
    if not any("{node}" in word for word in words):
        raise UsageError(
            f"--through {command!r} has no {{node}}; write it like 'ssh -o BatchMode=yes {{node}}'"
        )
    return [*(word.replace("{node}", node) for word in words), "/bin/sh"]


def _ask(
    argv: Sequence[str], name: str, question: Question, timeout_s: float, env: Optional[Mapping[str, str]]
) -> Union[HostReport, Silent]:
    asked = time.time()
    try:
        done = subprocess.run(
            argv,
            input=_text(question),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=None if env is None else dict(env),
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
    program = inspect.getsource(probe).partition('\nif __name__ == "__main__":')[0] + call
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
