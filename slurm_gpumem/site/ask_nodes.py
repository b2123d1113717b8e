"""Ask the nodes, with ssh or the site's own command."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from typing import List, NamedTuple, Sequence, Tuple, Union

from slurm_gpumem.errors import UsageError
from slurm_gpumem.site.hosts import HostReport, Question, Silent, ask_host

SSH = "ssh -o BatchMode=yes {node}"
_AT_ONCE = 16
NodeAsked = Tuple[str, Question]


class Answers(NamedTuple):
    """What came of asking the nodes."""

    reports: Tuple[HostReport, ...]
    silent: Tuple[Silent, ...]


def ask_nodes(nodes: Sequence[NodeAsked], through: str, timeout_s: float) -> Answers:
    """The reports of these nodes, a few at a time, and the nodes that gave none."""

    def ask(node: NodeAsked) -> Union[HostReport, Silent]:
        name, question = node
        return ask_host(through_argv(through, name), name, question, timeout_s)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(ask, nodes))
    return Answers(
        tuple(answer for answer in answers if isinstance(answer, HostReport)),
        tuple(answer for answer in answers if isinstance(answer, Silent)),
    )


def through_argv(command: str, node: str) -> List[str]:
    """The way to a node, with {node} replaced; it runs `sh` there."""
    words = shlex.split(command)
    if not any("{node}" in word for word in words):
        raise UsageError(f"--through {command!r} has no {{node}}; write it like {SSH!r}")
    return [*(word.replace("{node}", node) for word in words), "/bin/sh"]
