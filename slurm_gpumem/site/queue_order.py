"""How shares wait: small ones go around a large one that waits, until it has waited for an hour.

Slurm plans by nodes: once it holds a node for a waiting job, nothing else starts there that might still run
then, however many shares are free. bf_min_prio_reserve is the priority below which a waiting job holds
nothing. Where priority is age and nothing else, it is a time: what waits for longer gets its turn. Slurm
counts age only with slurmdbd: without it nobody would ever get there, and large shares would starve.

A job whose start is farther ahead than backfill looks (bf_window, a day) holds nothing either, and long jobs
go around it forever: the window must reach as far as the longest time limit.
"""

from __future__ import annotations

from math import ceil
from typing import Dict, Iterable, Mapping, Optional

from slurm_gpumem.site.setup.slurm_conf import value_of, words_of
from slurm_gpumem.slurm.state.queue import seconds_of

WORD = "bf_min_prio_reserve"
WINDOW = "bf_window"
_WINDOW_MIN, _LONGEST_WINDOW_MIN = 1440, 43_200
"""Slurm's default, and the most that it takes."""
_BEYOND_MIN = 60
"""With a window of just the longest limit, the end of a job that has just started was out of sight."""
PATIENCE_S = 3600
"""How long others may go around a job. `python -m lab.score.loads` prints what other times do."""
_AGE_WEIGHT = 100_000
_MAX_AGE_S = 7 * 86_400.0
"""Slurm's default."""
_OTHER_WEIGHTS = ("Assoc", "FairShare", "JobSize", "Partition", "QOS", "TRES")
NOTE = (
    f"for small shares to go around a large one that waits: SchedulerParameters={WORD}=N, N being the "
    "priority of a usual job that has waited for an hour. Only with slurmdbd: without it Slurm ignores age, "
    "and large shares would wait forever (gpumem docs placement)"
)


def has_patience(running: Mapping[str, str]) -> bool:
    """Whether the site has set it, to whatever value."""
    return any(word.startswith(f"{WORD}=") for word in words_of(running, "SchedulerParameters"))


def knows_age(running: Mapping[str, str]) -> bool:
    """Whether a job's priority rises while it waits, if the site wants it to."""
    return value_of(running, "AccountingStorageType") == "accounting_storage/slurmdbd"


def starves(running: Mapping[str, str]) -> bool:
    """Whether a job below bf_min_prio_reserve stays there, however long it waits."""
    by_weights = value_of(running, "PriorityType") == "priority/multifactor"
    return has_patience(running) and by_weights and not knows_age(running)


def window_for(running: Mapping[str, str], partitions: Iterable[Mapping[str, str]]) -> Optional[int]:
    """Minutes that backfill must look ahead for the longest job there; None where it does."""
    longest = max((seconds_of(part.get("MaxTime", "")) or 0.0 for part in partitions), default=0.0)
    set_to = [
        word[len(WINDOW) + 1 :] for word in words_of(running, "SchedulerParameters") if _is_window(word)
    ]
    window = int(set_to[-1]) if set_to and set_to[-1].isdigit() else _WINDOW_MIN
    minutes = ceil(longest / 60)
    needed = min(minutes + _BEYOND_MIN, _LONGEST_WINDOW_MIN)
    return needed if minutes >= window and needed > window else None


def flow_settings(running: Mapping[str, str], partitions: Iterable[Mapping[str, str]] = ()) -> Dict[str, str]:
    """What slurm.conf must say for small shares to flow around large ones, and these not to starve."""
    if value_of(running, "SchedulerType") not in (None, "sched/backfill"):
        return {}
    wanted = _patience(running)
    window = window_for(running, partitions)
    if window:
        words = words_of(wanted or running, "SchedulerParameters")
        words = [word for word in words if not _is_window(word)]
        wanted["SchedulerParameters"] = ",".join([*words, f"{WINDOW}={window}"])
    return wanted


def _is_window(word: str) -> bool:
    return word.startswith(f"{WINDOW}=")


def _patience(running: Mapping[str, str]) -> Dict[str, str]:
    """Nothing where it is said, where priorities are more than age, or where Slurm knows no age."""
    if has_patience(running) or not knows_age(running) or not _age_decides(running):
        return {}
    wanted: Dict[str, str] = {}
    if value_of(running, "PriorityType") != "priority/multifactor":
        wanted["PriorityType"] = "priority/multifactor"
    weight = _weight(running, "Age")
    if not weight:
        weight = _AGE_WEIGHT
        wanted["PriorityWeightAge"] = str(weight)
    longest = seconds_of(value_of(running, "PriorityMaxAge") or "") or _MAX_AGE_S
    priority = round(weight * min(1.0, PATIENCE_S / longest))
    if priority < 2:
        # Every job has a priority of 1 at least: no time can be told from such weights.
        return {}
    words = [*words_of(running, "SchedulerParameters"), f"{WORD}={priority}"]
    return {**wanted, "SchedulerParameters": ",".join(words)}


def _age_decides(running: Mapping[str, str]) -> bool:
    return not any(_weight(running, name) for name in _OTHER_WEIGHTS)


def _weight(running: Mapping[str, str], name: str) -> Optional[int]:
    """None where there is none; a list of weights by TRES counts as one."""
    text = value_of(running, f"PriorityWeight{name}")
    return None if text is None else int(text) if text.isdigit() else 1
