"""Why a run ended: one row for each verdict of recovery, one for each hint of the node's measurements.

A verdict's name stands in the job's comment (`saw=oom`), in its record and in reports; whatever is said to
people about it comes from its row. Which lines of a log lead to it is in recovery/patterns.py.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple

MORE_MEMORY, SAME_REQUEST, NEXT_SLOT, NO_RUN = "more memory", "same request", "next slot", "no run"
"""What recovery does: the ladder's next step; once more with the same request; the job's next time slot, from
its checkpoint; nothing."""


class Verdict(NamedTuple):
    """Why a run ended, as the task epilog judged it."""

    name: str
    ended: str
    """How it ended, in words that follow "this run ended"."""
    next_run: str
    """MORE_MEMORY, SAME_REQUEST, NEXT_SLOT or NO_RUN."""
    advice: str = ""
    """What its owner can do where it is not run again."""


OOM, NEIGHBOUR, HOST, SLOT, SAVED = "oom", "neighbour", "host", "slot", "saved"
VERDICTS: Mapping[str, Verdict] = {
    row.name: row
    for row in (
        Verdict(OOM, "out of GPU memory", MORE_MEMORY),
        Verdict(NEIGHBOUR, "by a fault in another job on this GPU", SAME_REQUEST),
        Verdict(HOST, "out of host memory, not GPU memory", NO_RUN, "Ask for more with --mem."),
        Verdict(SLOT, "at its slot's end, with a checkpoint", NEXT_SLOT),
        Verdict(SAVED, "with a program that saves checkpoints", NO_RUN),
    )
}
CHECKPOINTED = frozenset((SLOT, SAVED))
"""Not what a log says: they hold for runs that succeeded, too."""


class Hint(NamedTuple):
    """What the node's measurements suggest about a run that failed, or should not go on."""

    name: str
    note: str
    """For the report."""
    fault: bool = False
    """Whether a GPU fault ended the run, and so not a lack of memory."""


NEAR_LIMIT, OWN_FAULT, NEIGHBOUR_FAULT = "near-limit", "own-fault", "neighbour-fault"
REPEATED_FAULT, GPU_FAULT = "repeated-fault", "gpu-fault"
IDLE, IDLE_ENDED = "idle", "idle-ended"
"""Also events of a record: the job was found to do nothing on its GPUs; it was cancelled for that."""
HINTS: Mapping[str, Hint] = {
    row.name: row
    for row in (
        Hint(NEAR_LIMIT, "near its limit"),
        Hint(OWN_FAULT, "own fault", fault=True),
        Hint(NEIGHBOUR_FAULT, "neighbour fault", fault=True),
        Hint(REPEATED_FAULT, "repeated fault", fault=True),
        Hint(GPU_FAULT, "gpu fault", fault=True),
        Hint(IDLE, "GPU idle"),
        Hint(IDLE_ENDED, "cancelled, GPU idle"),
    )
}
FAULTS = frozenset(row.name for row in HINTS.values() if row.fault)
