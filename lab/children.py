"""Run functions in forked children: many at once, each with a time limit, none able to stop the rest.

The parent imports the heavy libraries once and never touches CUDA, so a child starts in milliseconds with
everything loaded. The time limits and the deaths of single children are what joblib does not offer; plain
parallel work (fits, simulations, replays) goes through joblib.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from multiprocessing import connection
from typing import Any, Callable, Dict, Iterable, Iterator, NamedTuple, Optional, Tuple

Answer = Dict[str, Any]
_POLL_S = 1.0


class Ended(NamedTuple):
    """A child that has ended: its answer, or why there is none."""

    tag: str
    answer: Optional[Answer]
    error: str = ""


def run_each(
    works: Iterable[Tuple[str, Callable[[], Answer]]], jobs: int, limit_seconds: float
) -> Iterator[Ended]:
    """Run every one of these named works in a child of its own, `jobs` at a time; each as it ends."""
    fork = multiprocessing.get_context("fork")
    queue = iter(works)
    running: Dict[Any, Tuple[str, Any, float]] = {}
    while True:
        while len(running) < jobs and (work := next(queue, None)):
            read, write = fork.Pipe(duplex=False)
            child = fork.Process(target=_be_child, args=(work[1], write))
            child.start()
            write.close()
            running[read] = (work[0], child, time.monotonic() + limit_seconds)
        if not running:
            return
        ready = connection.wait(list(running), _POLL_S)
        for pipe, (tag, child, deadline) in list(running.items()):
            if pipe in ready:
                ended = _received(tag, pipe, child)
            elif time.monotonic() > deadline:
                child.kill()
                ended = Ended(tag, None, f"time limit: killed after {limit_seconds:.0f} s")
            else:
                continue
            child.join()
            pipe.close()
            del running[pipe]
            yield ended


def _received(tag: str, pipe: Any, child: Any) -> Ended:
    try:
        return Ended(tag, *pipe.recv())
    except EOFError:
        child.join()
        return Ended(tag, None, f"died: exit code {child.exitcode} (negative: a signal)")


def _be_child(work: Callable[[], Answer], pipe: Any) -> None:
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    try:
        pipe.send((work(), ""))
    except BaseException:  # noqa: BLE001 - the child's end is its error; the parent says it
        pipe.send((None, " ".join(traceback.format_exc().split())))
