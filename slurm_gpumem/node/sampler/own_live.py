"""Leaves each user a file on their own jobs of this node, which `gpumem top` shows them."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Set

from slurm_gpumem.files import remove
from slurm_gpumem.formats.live import Live, LiveJob, OwnJob, OwnLive, write_own_live
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.node.jobs import NodeJob, RunFolder


class OwnLiveFiles:
    """Remembers which users have one."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        left = [path.stem for path in folder.own.glob("*.json")]
        self._written: Set[int] = {int(name) for name in left if name.isascii() and name.isdigit()}

    def write(self, jobs: Mapping[int, NodeJob], live: Live) -> None:
        """Bring the files up to date; a user without jobs has none."""
        by_user: Dict[int, Dict[int, OwnJob]] = {}
        for job_id, job in jobs.items():
            if job_id in live.jobs:
                by_user.setdefault(job.uid, {})[job_id] = own_job(job_id, job, live)
        for uid, own in by_user.items():
            self._written.add(uid)
            write_own_live(self._folder.own_live(uid), OwnLive(live.node, live.at, own), uid)
        self._remove(self._written - set(by_user))

    def close(self) -> None:
        """Nobody brings them up to date any more."""
        self._remove(set(self._written))

    def _remove(self, uids: Set[int]) -> None:
        for uid in uids:
            remove(self._folder.own_live(uid))
            self._written.discard(uid)


def own_job(job_id: int, job: NodeJob, live: Live) -> OwnJob:
    """What a job's owner may know of it, and of those beside it."""
    seen = live.jobs[job_id]
    measured = seen.measured
    beside = [
        other
        for number, other in live.jobs.items()
        if number != job_id and any(_holds(other, uuid) for uuid in seen.gpus)
    ]
    held = [size for other in beside for uuid in seen.gpus if (size := other.now_mib.get(uuid)) is not None]
    gpus = [live.gpus[uuid] for uuid in seen.gpus if uuid in live.gpus]
    return OwnJob(
        gpus=tuple(gpu.number for gpu in gpus if gpu.number is not None),
        shards=measured.shards,
        share_mib=measured.limit_mib,
        gpu_mib=_most([gpu.sample.memory_total_mib for gpu in gpus]),
        estimate_mib=seen.estimate_mib,
        now_mib=_most(list(seen.now_mib.values())),
        peak_mib=measured.peak_mib,
        sm_active=_activity(seen, live),
        neighbours=len(beside),
        neighbours_mib=round(sum(held), 1) if held else None,
        met=len(measured.met),
        slow=job.claimed.slow,
        profile=next((profile for gpu in gpus if (profile := profile_name(gpu.name))), ""),
    )


def _activity(job: LiveJob, live: Live) -> Optional[float]:
    """On a shared GPU activity belongs to nobody alone: an even part, as in records."""
    parts: List[float] = []
    for uuid in job.gpus:
        active = live.gpus[uuid].sample.sm_active if uuid in live.gpus else None
        sharers = sum(_holds(other, uuid) for other in live.jobs.values())
        if active is not None and _holds(job, uuid):
            parts.append(active / sharers)
    return round(sum(parts) / len(parts), 4) if parts else None


def _holds(job: LiveJob, uuid: str) -> bool:
    return bool(job.now_mib.get(uuid))


def _most(values: List[Optional[float]]) -> Optional[float]:
    return max((value for value in values if value is not None), default=None)
