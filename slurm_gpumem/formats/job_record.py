"""The job record, `gpumem-job/2`: one small JSON file per job run and node (docs/admin/node.md).

Hooks and sampler write it, recovery and the accounting read it. A record is root's, and a file of anybody
else is none; but some of what stands in it is not root's: the comment's words are the job owner's. So every
value is checked for type and size, and a bad one is left out; only without the handful that name the run is
the record refused. A first index reads a million of them: hence tuples, not dataclasses.
"""

from __future__ import annotations

import json
import os
import pwd
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, Dict, Iterable, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.files import primary_group, read_plain, write_json
from slurm_gpumem.formats.comment import CommentRecord, format_record, parse_word
from slurm_gpumem.formats.values import (
    MOST_AMOUNT,
    MOST_ITEMS,
    MOST_MIB,
    MOST_NOTE,
    MOST_RATIO,
    MOST_WHOLE,
    amount,
    clean_name,
    moment,
    name,
    text_list,
    values_of,
    whole,
    whole_list,
)
from slurm_gpumem.formats.verdicts import IDLE, IDLE_ENDED, OOM
from slurm_gpumem.units import MIB

SCHEMA = "gpumem-job/2"
MAX_BYTES = MIB
_SCHEMA_PREFIX = "gpumem-job/"
_MOST_MET, _MOST_STATE = 64, 24
MPS, MPS_SHARED, TIMESLICE, WITHOUT_MPS, MIG = "mps", "mps-shared", "timeslice", "without_mps", "mig"
"""WITHOUT_MPS is the mode of a run that should have got MPS and did not (its notes say why), MIG that of one
on an instance of its own, which the hardware fences."""
_OLD_MODES = {"unfenced": WITHOUT_MPS}
"""As earlier records call them."""
OVERRUN, CROWDED = "overrun", "crowded"
"""Events: the job was ended for taking more than its shards while sharing; another job there was."""
PREALLOCATED = "took GPU memory in advance"
"""What such a note of a run begins with: its peak does not show what it needed."""
_NO_CLAIM = CommentRecord()
_KILLS = (SIGKILL, SIGTERM)
_DECODE = json.JSONDecoder().raw_decode
"""What json.loads calls in the end."""


_UNCLEAR = 0.05
"""A run's time alone counts as known when what its neighbours cost is not known for less than this of it."""
MEASURED, REMEMBERED, PREDICTED = "measured", "remembered", "predicted"
BASES = (MEASURED, REMEMBERED, PREDICTED)
"""Where a job's activity alone is known from, the best first."""


class BadRecordError(ValueError):
    """This cannot be used; says why in a few words, the same for the same kind of fault."""


class GpuFigures(NamedTuple):
    """One run on one GPU; None is "not measured"."""

    number: Optional[int] = None
    name: str = ""
    memory_mib: Optional[float] = None
    """Number, name and memory are the GPU's own; name and memory of a MIG instance are the instance's."""
    instance: str = ""
    """Numbers of the GPU and compute instance, "3/0"; "" of a whole GPU."""
    peak_mib: Optional[float] = None
    mean_mib: Optional[float] = None
    energy_j: Optional[float] = None
    """The job's even part of it."""
    sm_active_share: Optional[float] = None
    """The job's even part of the SM activity; mean over its whole run."""
    slowed_s: Optional[float] = None
    """Seconds that it lost to neighbours: see node/sampler/gpu_readings.py."""
    unclear_s: Optional[float] = None
    """Seconds beside neighbours in which that was not known."""
    alone_by: str = ""
    """Where the activities alone behind `slowed_s` are known from: the weakest of BASES."""
    alone_sm: Optional[float] = None
    """Its SM activity while it had the GPU to itself."""
    idle_s: Optional[float] = None
    """Seconds in which it held memory and the GPU did nothing."""
    idle_energy_j: Optional[float] = None
    """Its even part of the energy while jobs had the GPU and none held memory of it."""
    curve: str = ""
    """See formats/curve.py."""
    # Means over the whole GPU while the job was there: one for each row of MEASURES in node/sources/base.py.
    gpu_sm_active: Optional[float] = None
    gpu_sm_occupancy: Optional[float] = None
    gpu_dram_active: Optional[float] = None
    gpu_utilization: Optional[float] = None
    gpu_power_w: Optional[float] = None
    gpu_tensor_active: Optional[float] = None
    gpu_pcie_tx_mib_s: Optional[float] = None
    gpu_pcie_rx_mib_s: Optional[float] = None
    gpu_nvlink_tx_mib_s: Optional[float] = None
    gpu_nvlink_rx_mib_s: Optional[float] = None


class FaultEvent(NamedTuple):
    """What hit the job: a fault of the GPU or of its MPS server, or a limit that was exceeded."""

    kind: str
    """"mps-fault", "xid", OVERRUN, CROWDED, IDLE or IDLE_ENDED."""
    gpu: str
    at: Optional[float]
    others: Tuple[int, ...]
    """Jobs at the same server that were hit at the same time; of OVERRUN and CROWDED: who was beside it."""
    xid: Optional[int] = None
    seconds: Optional[float] = None
    """Of IDLE and IDLE_ENDED: for how long."""

    def same_as(self, other: FaultEvent) -> bool:
        """Whether both report one fault; who else was hit may become known later."""
        return (self.kind, self.gpu, self.at) == (other.kind, other.gpu, other.at)


class Measurement(NamedTuple):
    """What the sampler measured of one run on this node."""

    shards: Optional[int] = None
    """Per GPU."""
    shards_verified: bool = False
    """Whether that is Slurm's own count."""
    limit_mib: Optional[int] = None
    """What the shards stand for; on a MIG instance its memory."""
    peak_mib: Optional[float] = None
    mean_mib: Optional[float] = None
    """The largest over its GPUs: shards are per GPU."""
    energy_j: Optional[float] = None
    gpu: Mapping[str, GpuFigures] = {}
    """By UUID."""
    met: Tuple[int, ...] = ()
    """Other jobs that it met on its GPUs."""
    samples: int = 0
    events: Tuple[FaultEvent, ...] = ()
    array_job: Optional[int] = None
    """Of an array's task, as Slurm says: the number of the array, and the task's in it."""
    array_task: Optional[int] = None
    cpus: Optional[int] = None
    """CPUs that it held on this node, as Slurm says."""
    cpus_mean: Optional[float] = None
    """CPUs that it kept busy, over all of its time ..."""
    cpus_high: Optional[float] = None
    """... and at most in nearly all of its busy time (node/sampler/cpu_clock.py)."""

    def time_alone(self, run_s: float) -> Optional[float]:
        """Seconds that a run of that length would have taken without neighbours; None where not known."""
        if self.shards and not self.samples:
            return None
        if not self.met:
            return run_s
        slowed, unclear, measured = 0.0, 0.0, False
        for figures in self.gpu.values():
            # The slowest of its GPUs keeps the others waiting.
            slowed, unclear = max(slowed, figures.slowed_s or 0.0), max(unclear, figures.unclear_s or 0.0)
            measured = measured or figures.gpu_sm_active is not None
        return max(0.0, run_s - slowed) if measured and unclear <= _UNCLEAR * run_s else None

    @property
    def alone_by(self) -> str:
        """What its time alone rests on: the weakest of its GPUs' bases; "" without neighbours."""
        bases = ("", *BASES)
        words = [figures.alone_by for figures in self.gpu.values() if figures.alone_by in bases]
        return max(words, key=bases.index, default="") if self.met else ""


class JobRecord(NamedTuple):
    """One run of a job on one node."""

    job_id: int
    restarts: int
    """0 for the first run."""
    uid: int
    node: str
    start: float
    """Unix time of the prolog."""
    cluster: str = ""
    partition: str = ""
    user: str = ""
    mode: str = ""
    """MPS (its user's own server), MPS_SHARED (one for all users), TIMESLICE, MIG or WITHOUT_MPS."""
    gpus: Tuple[str, ...] = ()
    """UUIDs, in Slurm's order."""
    claim: Optional[CommentRecord] = None
    """The record of the job's comment: its owner's word."""
    measured: Measurement = Measurement()
    end: Optional[float] = None
    """None while it runs."""
    exit_code: Optional[int] = None
    signal: Optional[int] = None
    state: str = ""
    """How Slurm says that it ended; an epilog learns less."""
    hints: Tuple[str, ...] = ()
    """What the measurements of a failed run suggest."""
    verdict: str = ""
    """What the task epilog saw in the job's log: one of VERDICTS."""
    notes: Tuple[str, ...] = ()
    """What was out of the ordinary, in words."""

    def idle(self) -> Optional[FaultEvent]:
        """That it did nothing on its GPUs for long: the last that was noted of it."""
        found = [event for event in self.measured.events if event.kind in (IDLE, IDLE_ENDED)]
        return found[-1] if found else None

    @property
    def claimed(self) -> CommentRecord:
        """The claim, or one that says nothing."""
        return self.claim or _NO_CLAIM

    @property
    def failed(self) -> bool:
        """Whether it ended with an exit code or by a signal."""
        return bool(self.exit_code or self.signal)

    @property
    def killed(self) -> bool:
        """Whether SIGTERM or SIGKILL ended it, as Slurm sends them; a shell makes exit codes of signals."""
        return self.signal in _KILLS or (self.exit_code or 0) - 128 in _KILLS

    @property
    def known_state(self) -> str:
        """Slurm's word, or what the exit code says where Slurm said nothing."""
        if self.state:
            return self.state
        if self.end is None:
            return "RUNNING"
        return "FAILED" if self.failed else "COMPLETED" if self.exit_code == 0 else "UNKNOWN"

    @property
    def out_of_memory(self) -> bool:
        """Whether that is what was made of its end: a run that fails near its limit may do so for any reason.

        Never of a run that succeeded: some programs catch the error and go on, and a log may say anything.
        """
        return self.verdict == OOM and self.known_state != "COMPLETED"


def preallocated(notes: Iterable[str]) -> bool:
    """Whether a run's peak is what a framework took at its start."""
    return any(note.startswith(PREALLOCATED) for note in notes)


_KEYS = (
    "job_id", "restarts", "uid", "node", "start", "cluster", "partition", "user", "mode", "gpus", "claim",
    "end", "exit_code", "signal", "state", "hints", "verdict", "notes",
)  # fmt: skip
_MEASURED_KEYS = Measurement._fields
_MOST_MEANS = [
    MOST_AMOUNT if field.endswith(("_w", "_mib_s")) else MOST_RATIO
    for field in GpuFigures._fields
    if field.startswith("gpu_")
]
"""Watts and MiB per second are amounts; all other means are parts of 1."""
_OWN, _MEASURED, _FIGURES = (itemgetter(*keys) for keys in (_KEYS, _MEASURED_KEYS, GpuFigures._fields))


def parse_job_record(data: bytes) -> JobRecord:
    """The record in a file's bytes; BadRecordError when it is torn, too large, or another thing."""
    if len(data) > MAX_BYTES:
        raise BadRecordError("larger than 1 MiB")
    try:
        text = data.decode().lstrip()
        table, end = _DECODE(text)
        if text[end:].strip():
            raise ValueError
    except (ValueError, RecursionError):
        raise BadRecordError("torn or no JSON" if data.strip() else "empty") from None
    if type(table) is not dict or type(table.get("schema")) is not str:
        raise BadRecordError("no job record")
    if table["schema"] != SCHEMA:
        known = table["schema"].startswith(_SCHEMA_PREFIX)
        raise BadRecordError("of another version" if known else "no job record")
    return job_record_from(table)


def read_job_record(path: Path) -> JobRecord:
    """The record in a file; OSError or BadRecordError when there is none of root's or our own."""
    return parse_job_record(read_plain(path, most_bytes=MAX_BYTES, owners=(0, os.geteuid())))


def job_record_from(table: Mapping[str, Any]) -> JobRecord:
    """The record of its JSON; BadRecordError when it does not name its run."""
    (
        job_id, restarts, uid, node, start, cluster, partition, user, mode, gpus, claim,
        end, exit_code, signal, state, hints, verdict, notes,
    ) = values_of(table, _OWN, _KEYS)  # fmt: skip
    start, end = moment(start), moment(end)
    if (
        type(job_id) is not int
        or type(restarts) is not int
        or type(uid) is not int
        or not (0 <= job_id < MOST_WHOLE and 0 <= restarts < MOST_WHOLE and 0 <= uid < MOST_WHOLE)
        or start is None
        or type(node) is not str
        or not _is_node_name(node)
    ):
        raise BadRecordError("without a usable job_id, restarts, uid, node or start")
    if end is not None and end < start:
        end = start  # the clock was set back while it ran
    return JobRecord(
        job_id,
        restarts,
        uid,
        node,
        start,
        clean_name(cluster) if type(cluster) is str else "",
        clean_name(partition) if type(partition) is str else "",
        clean_name(user) if type(user) is str else "",
        _OLD_MODES.get(mode, clean_name(mode)) if type(mode) is str else "",
        tuple([clean_name(uuid) for uuid in gpus[:MOST_ITEMS] if type(uuid) is str])
        if type(gpus) is list
        else (),
        parse_word(claim) if type(claim) is str else None,
        measurement_from(table),
        end,
        exit_code if type(exit_code) is int and 0 <= exit_code < MOST_WHOLE else None,
        signal if type(signal) is int and 0 <= signal < MOST_WHOLE else None,
        _state_name(state) if type(state) is str else "",
        text_list(hints) if hints else (),
        clean_name(verdict) if type(verdict) is str else "",
        text_list(notes, MOST_NOTE) if notes else (),
    )


def measurement_from(table: Mapping[str, Any]) -> Measurement:
    """The sampler's part of a record's or of a live job's JSON."""
    (
        shards, verified, limit, peak, mean, energy, gpu, met, samples, events, array, task,
        cpus, busy, busiest,
    ) = values_of(table, _MEASURED, _MEASURED_KEYS)  # fmt: skip
    return Measurement(
        shards if type(shards) is int and 0 <= shards < MOST_WHOLE else None,
        verified is True,
        limit if type(limit) is int and 0 <= limit < MOST_WHOLE else None,
        peak if (type(peak) is float or type(peak) is int) and 0 <= peak < MOST_MIB else None,
        mean if (type(mean) is float or type(mean) is int) and 0 <= mean < MOST_MIB else None,
        energy if (type(energy) is float or type(energy) is int) and 0 <= energy < MOST_AMOUNT else None,
        {clean_name(uuid): _figures(figures) for uuid, figures in gpu.items() if type(figures) is dict}
        if type(gpu) is dict
        else {},
        whole_list(met, _MOST_MET) if met else (),
        samples if type(samples) is int and 0 <= samples < MOST_WHOLE else 0,
        _events(events) if events else (),
        array if type(array) is int and 0 <= array < MOST_WHOLE else None,
        task if type(task) is int and 0 <= task < MOST_WHOLE else None,
        cpus if type(cpus) is int and 0 < cpus < MOST_WHOLE else None,
        busy if (type(busy) is float or type(busy) is int) and 0 <= busy < MOST_AMOUNT else None,
        busiest if (type(busiest) is float or type(busiest) is int) and 0 <= busiest < MOST_AMOUNT else None,
    )


def job_record_table(record: JobRecord) -> Dict[str, Any]:
    """The record as JSON; what nobody knows is null."""
    table = {"schema": SCHEMA, **record._asdict(), **measurement_table(record.measured)}
    del table["measured"]
    return {
        **table,
        "claim": None if record.claim is None else format_record(record.claim),
        "state": record.state or None,
        "verdict": record.verdict or None,
    }


def measurement_table(measured: Measurement) -> Dict[str, Any]:
    """The sampler's part as JSON."""
    return {
        **measured._asdict(),
        "gpu": {
            uuid: {
                **figures._asdict(),
                "curve": figures.curve or None,
                "instance": figures.instance or None,
                "alone_by": figures.alone_by or None,
            }
            for uuid, figures in measured.gpu.items()
        },
        "events": [_event_table(event) for event in measured.events],
    }


def record_name(job_id: int, restarts: int, node: str) -> str:
    """The name of the file of one run of a job on one node."""
    return f"{job_id}.{restarts}.{node}.json"


def write_job_record(spool: Path, record: JobRecord, *, durable: bool = False) -> None:
    """Write it whole, root's, readable by the job's own user, and by Slurm's for recovery and mails."""
    spool.mkdir(mode=0o755, parents=True, exist_ok=True)
    write_json(
        spool / record_name(record.job_id, record.restarts, record.node),
        job_record_table(record),
        mode=0o640,
        reader_uid=record.uid,
        reader_gid=primary_group(record.uid),
        also=_slurm_user(),
        durable=durable,
    )


@lru_cache(maxsize=1)
def _slurm_user() -> Tuple[int, ...]:
    """Slurm's own account, by the name that all packages give it."""
    try:
        return (pwd.getpwnam("slurm").pw_uid,)
    except KeyError:
        return ()


def _figures(table: Mapping[str, Any]) -> GpuFigures:
    (
        number, called, memory, instance, peak, mean, energy, share, slowed, unclear, basis, alone,
        idle, idle_j, curve, *means,
    ) = values_of(table, _FIGURES, GpuFigures._fields)  # fmt: skip
    return GpuFigures(
        number if type(number) is int and 0 <= number < MOST_WHOLE else None,
        clean_name(called) if type(called) is str else "",
        memory if (type(memory) is float or type(memory) is int) and 0 <= memory < MOST_MIB else None,
        clean_name(instance) if type(instance) is str else "",
        peak if (type(peak) is float or type(peak) is int) and 0 <= peak < MOST_MIB else None,
        mean if (type(mean) is float or type(mean) is int) and 0 <= mean < MOST_MIB else None,
        energy if (type(energy) is float or type(energy) is int) and 0 <= energy < MOST_AMOUNT else None,
        share if (type(share) is float or type(share) is int) and 0 <= share < MOST_RATIO else None,
        slowed if (type(slowed) is float or type(slowed) is int) and 0 <= slowed < MOST_AMOUNT else None,
        unclear if (type(unclear) is float or type(unclear) is int) and 0 <= unclear < MOST_AMOUNT else None,
        clean_name(basis) if type(basis) is str else "",
        alone if (type(alone) is float or type(alone) is int) and 0 <= alone < MOST_RATIO else None,
        idle if (type(idle) is float or type(idle) is int) and 0 <= idle < MOST_AMOUNT else None,
        idle_j if (type(idle_j) is float or type(idle_j) is int) and 0 <= idle_j < MOST_AMOUNT else None,
        curve if type(curve) is str else "",
        *[
            value if (type(value) is float or type(value) is int) and 0 <= value < most else None
            for value, most in zip(means, _MOST_MEANS)
        ],
    )


def _events(value: Any) -> Tuple[FaultEvent, ...]:
    tables = [event for event in value[:MOST_ITEMS] if type(event) is dict] if type(value) is list else ()
    return tuple(
        FaultEvent(
            kind=name(event.get("kind")),
            gpu=name(event.get("gpu")),
            at=moment(event.get("at")),
            others=whole_list(event.get("with"), _MOST_MET),
            xid=whole(event.get("xid")),
            seconds=amount(event.get("seconds")),
        )
        for event in tables
    )


def _event_table(event: FaultEvent) -> Dict[str, Any]:
    table: Dict[str, Any] = {"kind": event.kind, "gpu": event.gpu, "at": event.at, "with": event.others}
    more = {"xid": event.xid, "seconds": event.seconds}
    return {**table, **{key: value for key, value in more.items() if value is not None}}


@lru_cache(maxsize=16_384)
def _is_node_name(text: str) -> bool:
    """Whether it can be a part of a file's name."""
    return text != "" and clean_name(text) == text and "/" not in text


@lru_cache(maxsize=256)
def _state_name(text: str) -> str:
    """Slurm's word for a state; "" when it does not look like one."""
    return text if len(text) <= _MOST_STATE and text.isascii() and text.replace("_", "").isalpha() else ""
