"""How shares wait: small ones go around a large one that waits, until it has waited for an hour.

Slurm plans by nodes: once it holds a node for a waiting job, nothing else starts there that might still run
then, however many shares are free. bf_min_prio_reserve is the priority below which a waiting job holds
nothing. Where priority is age and nothing else, it is a time: what waits for longer gets its turn.
"""

from __future__ import annotations

from typing import Dict, Mapping, Optional

from slurm_gpumem.site.slurm_conf import value_of, words_of
from slurm_gpumem.slurm.queue import seconds_of

WORD = "bf_min_prio_reserve"
PATIENCE_S = 3600
"""How long others may go around a job. `python -m lab.score.loads` prints what other times do."""
_AGE_WEIGHT = 100_000
_MAX_AGE_S = 7 * 86_400.0
"""Slurm's default."""
_OTHER_WEIGHTS = ("Assoc", "FairShare", "JobSize", "Partition", "QOS", "TRES")
NOTE = (
    f"for small shares to go around a large one that waits: SchedulerParameters={WORD}=N, N being the "
    "priority of a usual job that has waited for an hour (gpumem docs placement)"
)


def has_patience(running: Mapping[str, str]) -> bool:
    """Whether the site has set it, to whatever value."""
    return any(word.startswith(f"{WORD}=") for word in words_of(running, "SchedulerParameters"))


def flow_settings(running: Mapping[str, str]) -> Dict[str, str]:
    """What slurm.conf must say; nothing where it is said, or where priorities are more than age."""
    backfill = value_of(running, "SchedulerType") in (None, "sched/backfill")
    if has_patience(running) or not backfill or not _age_decides(running):
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
