"""Ask the nodes: with the site's own command, or by small jobs.

A job can do harm: Slurm drains a node whose Prolog or Epilog cannot be started. So the first job goes to one
node alone, and after each round the nodes are looked at before the next ones are asked.
"""

from __future__ import annotations

import shlex
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from slurm_gpumem.errors import SlurmError, UsageError
from slurm_gpumem.site.hosts import HostReport, Question, Silent, ask_host, is_drained, is_up, takes_jobs
from slurm_gpumem.slurm import nodes as slurm_nodes
from slurm_gpumem.slurm.client import COMMANDS, Commands, SlurmClient
from slurm_gpumem.slurm.node_names import fold_names
from slurm_gpumem.slurm.nodes import Record
from slurm_gpumem.slurm.on_node import jobs_on_nodes, outside_jobs, shell_on_node

_AT_ONCE = 16
_FIRST_TRIES = 3
"""Nodes that are asked one by one until one answers; after that the cluster is too busy to be asked."""
_POLL_S = 0.2
NodeAsked = Tuple[Record, Question]
Answer = Union[HostReport, Silent]


class Answers(NamedTuple):
    """What came of asking the nodes."""

    reports: Tuple[HostReport, ...]
    silent: Tuple[Silent, ...]
    harmed: Tuple[Silent, ...] = ()
    """Nodes that do not take jobs any more since they were asked, and why."""


def ask_nodes(
    nodes: Sequence[NodeAsked], through: Optional[str], timeout_s: float, commands: Commands = COMMANDS
) -> Answers:
    """The reports of these nodes, a few at a time, and the nodes that gave none."""

    def ask(pair: NodeAsked) -> Answer:
        node, question = pair
        name = node.get("NodeName", "")
        argv = shell_on_node(node, timeout_s) if through is None else through_argv(through, name)
        # srun waits for the node, then for its task.
        return ask_host(argv, name, question, 2 * timeout_s, outside_jobs(commands.environment))

    if through is None:
        return _by_jobs(nodes, ask, commands, timeout_s)
    return _sorted(_at_once(nodes, ask))


def through_argv(command: str, node: str) -> List[str]:
    """The site's own way to a node, with {node} replaced; it runs `sh` there."""
    words = shlex.split(command)
    if not any("{node}" in word for word in words):
        raise UsageError(
            f"--through {command!r} has no {{node}}; write it like 'ssh -o BatchMode=yes {{node}}'"
        )
    return [*(word.replace("{node}", node) for word in words), "/bin/sh"]


def _by_jobs(
    nodes: Sequence[NodeAsked],
    ask: Callable[[NodeAsked], Answer],
    client: SlurmClient,
    timeout_s: float,
) -> Answers:
    """Ask one node, then several at once; stops at the first round that a node did not survive."""
    left = sorted(
        (pair for pair in nodes if is_up(_state(pair))), key=lambda pair: "IDLE" not in _state(pair)
    )
    found: List[Answer] = [_not_up(pair) for pair in nodes if not is_up(_state(pair))]
    tried: List[str] = []
    answered = False
    while left:
        count = _AT_ONCE if answered else 1
        asked, left = left[:count], left[count:]
        names = [_name(pair) for pair in asked]
        answers = _at_once(asked, ask)
        harmed = _harmed(names, client, timeout_s)
        if harmed:
            lost = {node.name for node in harmed}
            found += [
                answer for answer in answers if isinstance(answer, HostReport) or answer.name not in lost
            ]
            why = f"not asked, because {fold_names(sorted(lost))} did not survive it"
            return _sorted([*found, *(Silent(_name(pair), why) for pair in left)], harmed)
        found += answers
        tried += names
        answered = answered or any(isinstance(answer, HostReport) for answer in answers)
        if not answered and len(tried) >= _FIRST_TRIES:
            why = f"not asked, because {fold_names(tried)} did not answer"
            return _sorted([*found, *(Silent(_name(pair), why) for pair in left)])
    return _sorted(found)


def _harmed(names: Sequence[str], client: SlurmClient, timeout_s: float) -> Tuple[Silent, ...]:
    """Which of these nodes, which took jobs before, do not after the jobs that asked them; and why."""
    deadline = time.monotonic() + timeout_s
    try:
        # Epilogs run after srun has its answer.
        while (unended := jobs_on_nodes(client, names)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        states = {node["NodeName"]: node for node in slurm_nodes.ask_nodes(client)}
    except SlurmError as error:
        return tuple(Silent(name, f"what became of it is not known: {error}") for name in names)
    found: Dict[str, str] = {}
    for name in names:
        node = states.get(name, {})
        state, reason = node.get("State", "unknown"), node.get("Reason", "").partition(" [")[0]
        if is_drained(state):
            found[name] = f"drained by the job that asked it: {reason or 'no reason given'}"
        elif not is_up(state):
            found[name] = f"its state is {state} since it was asked"
        elif unended and name in unended:
            found[name] = f"the job that asked it has not ended after {timeout_s:.0f} s more"
    return tuple(Silent(name, why) for name, why in found.items())


def _at_once(nodes: Sequence[NodeAsked], ask: Callable[[NodeAsked], Answer]) -> List[Answer]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(ask, nodes))


def _sorted(answers: Sequence[Answer], harmed: Sequence[Silent] = ()) -> Answers:
    return Answers(
        tuple(answer for answer in answers if isinstance(answer, HostReport)),
        tuple(answer for answer in answers if isinstance(answer, Silent)),
        tuple(harmed),
    )


def _not_up(pair: NodeAsked) -> Silent:
    asleep = "; it was not woken up to be asked" if takes_jobs(_state(pair)) else ""
    return Silent(_name(pair), f"its state is {_state(pair)}{asleep}")


def _name(pair: NodeAsked) -> str:
    return pair[0].get("NodeName", "")


def _state(pair: NodeAsked) -> str:
    return pair[0].get("State", "")
