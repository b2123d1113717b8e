"""Checks of the queue: which GPU comes first, and who may go around whom."""

from __future__ import annotations

from typing import Iterator

from slurm_gpumem.site.doctor.check_gpus import shared_partitions
from slurm_gpumem.site.doctor.findings import Finding, note, warning
from slurm_gpumem.site.queue_order import NOTE, WORD, has_patience, starves, window_for
from slurm_gpumem.site.setup.slurm_conf import DEFAULT_TIME, spreads, value_of, without_time_limit, words_of
from slurm_gpumem.site.snapshot import Snapshot


def small_shares_flow_around_large_ones(now: Snapshot) -> Iterator[Finding]:
    """A share that waits holds up all behind it, but for jobs that backfill knows to end in time."""
    scheduler = value_of(now.config, "SchedulerType")
    if scheduler not in (None, "sched/backfill"):
        yield warning(
            "no-backfill",
            f"SchedulerType={scheduler}",
            "a large share that waits keeps all smaller ones behind it waiting, beside free shares",
            "SchedulerType=sched/backfill in slurm.conf, then restart slurmctld",
        )
    elif not has_patience(now.config):
        yield note(
            "queue-order",
            f"SchedulerParameters has no {WORD}",
            "a share that waits holds its node: of the jobs behind it only those start there that end before",
            f"gpumem setup proposes a value where age alone decides who is first; else, {NOTE}",
        )
    if starves(now.config):
        yield warning(
            "no-age",
            f"{WORD} is set, and there is no slurmdbd: Slurm then ignores PriorityWeightAge",
            "a large share whose priority is lower never gets its turn: small ones go around it forever",
            f"take {WORD} out of SchedulerParameters in slurm.conf, or run slurmdbd",
        )
    window = window_for(now.config, shared_partitions(now))
    if window:
        yield note(
            "backfill-window",
            "backfill does not look ahead as far as the longest time limit (bf_window)",
            "a large share that must wait for longer jobs than that has no planned start: others overtake it",
            f"SchedulerParameters=bf_window={window} in slurm.conf, then scontrol reconfigure",
        )
    endless = without_time_limit(shared_partitions(now))
    if endless:
        yield note(
            "no-time-limit",
            f"partition {', '.join(endless)}: no DefaultTime and no MaxTime",
            "backfill starts no job without a time limit beside a large share that waits",
            DEFAULT_TIME,
        )


def idle_gpus_come_first(now: Snapshot) -> Iterator[Finding]:
    """Without LLN Slurm fills a node before it takes the next, and jobs share GPUs for nothing."""
    everywhere = "CR_LLN" in (word.upper() for word in words_of(now.config, "SelectTypeParameters"))
    if everywhere or not spreads(now.config):
        return
    shared = [node.get("Partitions", "").split(",") for node in now.shared_nodes()]
    uneven = [
        part["PartitionName"]
        for part in shared_partitions(now)
        if part.get("LLN") == "NO" and sum(part["PartitionName"] in names for names in shared) > 1
    ]
    if uneven:
        yield note(
            "node-order",
            f"partition {', '.join(uneven)}: LLN=NO",
            "shares fill one node before they go to the next: jobs slow each other down beside idle GPUs",
            "LLN=YES on the partition, or a max_slowdown of at most 2 (gpumem docs placement)",
        )
