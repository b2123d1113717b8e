"""Inference servers that take a fraction of the GPU at their start: the fraction that is the job's share.

They size their caches by the whole GPU's memory, whatever the job's limit is, so that with the default one
of them takes nearly all of it. What each fraction covers is from the servers' own documentation; none of them
was measured here.
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Pattern, Sequence, Tuple


class Server(NamedTuple):
    """One kind of server: how it is recognized, and the option that bounds it."""

    name: str
    starts: Pattern[str]
    option: str
    keyword: str
    """As Python code passes it."""
    default: float
    holds_all: bool
    """Whether the fraction covers the CUDA context and what the server computes with, too. Else it gets as
    much of the share as its default takes of a GPU, and the rest is for these."""


SERVERS: Tuple[Server, ...] = (
    Server(
        "vLLM",
        re.compile(r"(?<![\w/.-])vllm\s+(?:serve|bench|run-batch)\b|-m\s+vllm\.|\bvllm/vllm-openai\b"),
        "--gpu-memory-utilization",
        "gpu_memory_utilization",
        0.9,
        True,
    ),
    Server(
        "SGLang",
        re.compile(r"-m\s+sglang\.|(?<![\w/.-])sglang\s+serve\b|\blmsysorg/sglang\b"),
        "--mem-fraction-static",
        "mem_fraction_static",
        0.9,
        False,
    ),
    Server(
        "text-generation-inference",
        re.compile(r"(?<![\w-])text-generation-(?:launcher|server)\b|huggingface/text-generation-inference"),
        "--cuda-memory-fraction",
        "cuda_memory_fraction",
        1.0,
        False,
    ),
)


def server_remark(
    commands: Sequence[Tuple[str, str]], total_mib: int, context_mib: int, share_mib: int
) -> Optional[str]:
    """For a server in a job that has a share of a GPU: the fraction to start it with; None where it fits."""
    found = _started(commands)
    if found is None:
        return None
    server, where, given = found
    part = fraction_of(server, total_mib, context_mib, share_mib)
    if given is not None and given <= part:
        return None
    takes = f"{server.option} {given:g}" if given is not None else f"{server.default:g} by default"
    return (
        f"{where} starts {server.name}, which takes a part of the whole GPU's memory ({takes}) that is more "
        f"than this share.\nStart it with {server.option} {part:.2f} (computed, not measured), or ask for "
        "more memory (--gpu-mem)"
    )


def unshared_server_remark(
    commands: Sequence[Tuple[str, str]], total_mib: int, context_mib: int
) -> Optional[str]:
    """For a server in a job without a share: how it gets one, since no measured run shows its need."""
    found = _started(commands)
    if found is None:
        return None
    server, where, given = found
    if given is None:
        return (
            f"{where} starts {server.name}, which takes {100 * server.default:.0f} % of the whole GPU's "
            "memory unless it is given a part: its runs show no need.\nTo share a GPU, say how much it may "
            f"have (--gpu-mem 24G); the part for {server.option} is then printed"
        )
    need = given * total_mib if server.holds_all else given * total_mib / server.default + context_mib
    return (
        f"{where} starts {server.name} with {server.option} {given:g}: --gpu-mem {-(-round(need) // 1024)}G "
        "is the share of a GPU that this takes (computed, not measured)"
    )


def fraction_of(server: Server, total_mib: int, context_mib: int, share_mib: int) -> float:
    """The fraction of the whole GPU that stays in a share, in hundredths."""
    room = share_mib if server.holds_all else (share_mib - context_mib) * server.default
    return max(1, int(100 * room / total_mib)) / 100


def _started(commands: Sequence[Tuple[str, str]]) -> Optional[Tuple[Server, str, Optional[float]]]:
    """The first server that a line starts, where, and the fraction that it is given."""
    joined = _whole_lines(commands)
    for server in SERVERS:
        # A word of its own behind the option, or a keyword of Python code in the command.
        number = re.compile(rf"(?:{server.option}[= ]|{server.keyword}=)[\"']?([01]?\.\d+|[01])\b")
        for where, line in joined:
            by_option = server.option in line or f"{server.keyword}=" in line
            if server.starts.search(line) or by_option:
                match = number.search(line)
                return server, where.rstrip(":"), float(match[1]) if match else None
    return None


def _whole_lines(commands: Sequence[Tuple[str, str]]) -> List[Tuple[str, str]]:
    """Lines that end in a backslash, with what follows them."""
    found: List[Tuple[str, str]] = []
    open_line = False
    for where, line in commands:
        text = line.rstrip()
        more = text.endswith("\\")
        text = text[:-1] if more else text
        if open_line:
            found[-1] = (found[-1][0], f"{found[-1][1]} {text.strip()}")
        else:
            found.append((where, text))
        open_line = more
    return found
