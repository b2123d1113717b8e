"""A user's live file, `gpumem-own/1`: what the sampler saw of one user's jobs at its last look.

The sampler writes one for each user with jobs on its node; only root and that user can read it, and
`gpumem top` does. Of other jobs it says how many there are and what they hold together: no numbers, names or
activities.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.files import primary_group, read_json_of, write_json
from slurm_gpumem.formats.values import amount, moment, name, whole, whole_list

SCHEMA = "gpumem-own/1"
MAX_BYTES = 1 << 18
_MOST_GPUS = 64


class OwnJob(NamedTuple):
    """One job of the user; None is "not known". Sizes are in MiB."""

    gpus: Tuple[int, ...] = ()
    """Numbers of its GPUs on the node."""
    shards: Optional[int] = None
    share_mib: Optional[int] = None
    """What it may use of one GPU; None for a whole GPU."""
    gpu_mib: Optional[float] = None
    """Memory of its largest GPU."""
    estimate_mib: Optional[int] = None
    now_mib: Optional[float] = None
    peak_mib: Optional[float] = None
    """On the GPU where it holds or held most: shares are counted per GPU."""
    sm_active: Optional[float] = None
    """Its even part of its GPUs' activity."""
    neighbours: int = 0
    """Other jobs that hold memory of its GPUs now."""
    neighbours_mib: Optional[float] = None
    met: int = 0
    """Other jobs that it has met there so far."""
    slow: str = ""
    """The slowdown that its share was sized for."""
    profile: str = ""
    """Of its MIG instance; "" on a whole GPU."""


class OwnLive(NamedTuple):
    """One user's jobs on one node at the last look."""

    node: str = ""
    at: Optional[float] = None
    """Unix time."""
    jobs: Mapping[int, OwnJob] = {}


def write_own_live(path: Path, live: OwnLive, uid: int) -> None:
    """For that user to read, and nobody else."""
    jobs = {str(job_id): job._asdict() for job_id, job in live.jobs.items()}
    write_json(
        path,
        {"schema": SCHEMA, **live._asdict(), "jobs": jobs},
        mode=0o640,
        reader_uid=uid,
        reader_gid=primary_group(uid),
    )


def read_own_live(path: Path) -> Optional[OwnLive]:
    """What the file holds; None when there is none that root, or we ourselves, wrote."""
    return own_live_from(read_json_of(path, owners=(0, os.geteuid()), most_bytes=MAX_BYTES))


def own_live_from(table: Any) -> Optional[OwnLive]:
    """The live file of its JSON; None for what is none."""
    if not isinstance(table, dict) or table.get("schema") != SCHEMA:
        return None
    jobs = table.get("jobs")
    found = jobs.items() if isinstance(jobs, dict) else ()
    return OwnLive(
        node=name(table.get("node")),
        at=moment(table.get("at")),
        jobs={
            int(text): _job(job)
            for text, job in found
            if isinstance(job, dict) and text.isascii() and text.isdigit()
        },
    )


def _job(table: Mapping[str, Any]) -> OwnJob:
    get = table.get
    return OwnJob(
        gpus=whole_list(get("gpus"), _MOST_GPUS),
        shards=whole(get("shards")),
        share_mib=whole(get("share_mib")),
        gpu_mib=amount(get("gpu_mib")),
        estimate_mib=whole(get("estimate_mib")),
        now_mib=amount(get("now_mib")),
        peak_mib=amount(get("peak_mib")),
        sm_active=amount(get("sm_active")),
        neighbours=whole(get("neighbours")) or 0,
        neighbours_mib=amount(get("neighbours_mib")),
        met=whole(get("met")) or 0,
        slow=name(get("slow")),
        profile=name(get("profile")),
    )
