"""The live file, `gpumem-live/1`: what a node's sampler saw at its last look.

The sampler writes it; `gpumem node status`, the metrics, the epilog and the next sampler read it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Dict, Iterable, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.files import primary_group, read_json, read_json_of, write_json
from slurm_gpumem.formats.job_record import Measurement, measurement_from, measurement_table
from slurm_gpumem.formats.values import MOST_NOTE, amount, moment, name, text_list, whole, whole_list

SCHEMA = "gpumem-live/1"
_JOB_NUMBER = re.compile("[0-9]{1,15}")


class GpuSample(NamedTuple):
    """One look at one GPU. Activities are parts of 1 since the look before; None is "not known"."""

    memory_used_mib: Optional[float] = None
    memory_total_mib: Optional[float] = None
    sm_active: Optional[float] = None
    sm_occupancy: Optional[float] = None
    dram_active: Optional[float] = None
    utilization: Optional[float] = None
    """Part of the time in which any kernel ran at all."""
    power_w: Optional[float] = None
    tensor_active: Optional[float] = None
    pcie_tx_mib_s: Optional[float] = None
    """tx is what the GPU sends, rx what it receives."""
    pcie_rx_mib_s: Optional[float] = None
    nvlink_tx_mib_s: Optional[float] = None
    nvlink_rx_mib_s: Optional[float] = None


class LiveGpu(NamedTuple):
    """One GPU at the last look."""

    number: Optional[int] = None
    name: str = ""
    instance: str = ""
    """Numbers of the GPU and compute instance, "3/0"; "" of a whole GPU."""
    other_mib: Optional[float] = None
    """Memory of processes that are no shared job's."""
    mps_clients: Optional[int] = None
    idle_s: Optional[float] = None
    """How long jobs have held memory of it while it did nothing; 0 when it does something."""
    sample: GpuSample = GpuSample()


class LiveJob(NamedTuple):
    """One job at the last look."""

    user: str = ""
    mode: str = ""
    gpus: Tuple[str, ...] = ()
    """UUIDs, in Slurm's order."""
    estimate_mib: Optional[int] = None
    request_mib: Optional[int] = None
    restarts: int = 0
    now_mib: Mapping[str, Optional[float]] = {}
    """By UUID."""
    processes: int = 0
    notes: Tuple[str, ...] = ()
    measured: Measurement = Measurement()


class Live(NamedTuple):
    """The node at the last look."""

    node: str = ""
    at: Optional[float] = None
    interval_s: Optional[float] = None
    source: str = ""
    """Where the measurements come from."""
    gpus: Mapping[str, LiveGpu] = {}
    jobs: Mapping[int, LiveJob] = {}


def read_live(path: Path) -> Optional[Live]:
    """What the file holds; None when it is missing or no live file."""
    table = read_json(path)
    return live_from(table) if isinstance(table, dict) and table.get("schema") == SCHEMA else None


def read_live_jobs(path: Path, job_ids: Iterable[int]) -> Dict[int, LiveJob]:
    """Some of its jobs: to check what it says of all takes longer than the rest of a hook in a burst."""
    table = read_json(path)
    jobs = table.get("jobs") if isinstance(table, dict) and table.get("schema") == SCHEMA else None
    tables = dict(_tables(jobs))
    return {job_id: _job(tables[str(job_id)]) for job_id in job_ids if str(job_id) in tables}


def write_live(path: Path, live: Live) -> None:
    """For root alone: it names all users' jobs."""
    write_json(path, live_table(live), mode=0o600)


def live_from(table: Mapping[str, Any]) -> Live:
    """The live file of its JSON; what makes no sense is left out."""
    gpus, jobs = table.get("gpus"), table.get("jobs")
    return Live(
        node=name(table.get("node")),
        at=amount(table.get("at")),
        interval_s=amount(table.get("interval_s")),
        source=name(table.get("source")),
        gpus={uuid: _gpu(gpu) for uuid, gpu in _tables(gpus)},
        jobs={int(text): _job(job) for text, job in _tables(jobs) if _JOB_NUMBER.fullmatch(text)},
    )


def live_table(live: Live) -> Dict[str, Any]:
    """The live file as JSON; of a GPU's sample, what is not known is left out."""
    return {
        "schema": SCHEMA,
        **live._asdict(),
        "gpus": {uuid: _gpu_table(gpu) for uuid, gpu in live.gpus.items()},
        "jobs": {str(job_id): _job_table(job) for job_id, job in live.jobs.items()},
    }


def _gpu(table: Mapping[str, Any]) -> LiveGpu:
    get = table.get
    return LiveGpu(
        number=whole(get("number")),
        name=name(get("name")),
        instance=name(get("instance")),
        other_mib=amount(get("other_mib")),
        mps_clients=whole(get("mps_clients")),
        idle_s=amount(get("idle_s")),
        sample=GpuSample._make(amount(get(key)) for key in GpuSample._fields),
    )


def _gpu_table(gpu: LiveGpu) -> Dict[str, Any]:
    own = {**gpu._asdict(), **gpu.sample._asdict()}
    del own["sample"]
    own["instance"] = gpu.instance or None
    return {key: value for key, value in own.items() if value is not None}


def _job(table: Mapping[str, Any]) -> LiveJob:
    get, now = table.get, table.get("now_mib")
    return LiveJob(
        user=name(get("user")),
        mode=name(get("mode")),
        gpus=text_list(get("gpus")),
        estimate_mib=whole(get("estimate_mib")),
        request_mib=whole(get("request_mib")),
        restarts=whole(get("restarts")) or 0,
        now_mib={uuid: amount(mib) for uuid, mib in now.items()} if isinstance(now, dict) else {},
        processes=whole(get("processes")) or 0,
        notes=text_list(get("notes"), MOST_NOTE),
        measured=measurement_from(table),
    )


def _job_table(job: LiveJob) -> Dict[str, Any]:
    own = {**job._asdict(), **measurement_table(job.measured)}
    del own["measured"]
    return own


def _tables(value: Any) -> Any:
    return [item for item in value.items() if isinstance(item[1], dict)] if isinstance(value, dict) else ()


# A user's live file, `gpumem-own/1`: what the sampler saw of one user's jobs at its last look.
#
# The sampler writes one for each user with jobs on its node; only root and that user can read it, and
# `gpumem top` does. Of other jobs it says how many there are and what they hold together: no numbers, names
# or activities.

OWN_SCHEMA = "gpumem-own/1"
_OWN_BYTES = 1 << 18
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
        {"schema": OWN_SCHEMA, **live._asdict(), "jobs": jobs},
        mode=0o640,
        reader_uid=uid,
        reader_gid=primary_group(uid),
    )


def read_own_live(path: Path) -> Optional[OwnLive]:
    """What the file holds; None when there is none that root, or we ourselves, wrote."""
    return own_live_from(read_json_of(path, owners=(0, os.geteuid()), most_bytes=_OWN_BYTES))


def own_live_from(table: Any) -> Optional[OwnLive]:
    """The live file of its JSON; None for what is none."""
    if not isinstance(table, dict) or table.get("schema") != OWN_SCHEMA:
        return None
    jobs = table.get("jobs")
    found = jobs.items() if isinstance(jobs, dict) else ()
    return OwnLive(
        node=name(table.get("node")),
        at=moment(table.get("at")),
        jobs={
            int(text): _own_live_job(job)
            for text, job in found
            if isinstance(job, dict) and text.isascii() and text.isdigit()
        },
    )


def _own_live_job(table: Mapping[str, Any]) -> OwnJob:
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
