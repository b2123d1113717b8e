"""The node's metrics in Prometheus' text format, for node_exporter's textfile collector.

What is not known is left out, never 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

from slurm_gpumem.config.node import NodeConfig
from slurm_gpumem.files import read_json, write_atomic, write_json
from slurm_gpumem.formats import verdicts
from slurm_gpumem.formats.job_record import GpuFigures, JobRecord
from slurm_gpumem.formats.live import Live, LiveGpu, LiveJob
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.node.jobs import RunFolder
from slurm_gpumem.node.records import find_record
from slurm_gpumem.text import printable
from slurm_gpumem.units import MIB

# Counts of the jobs that have ended on this node, kept over the sampler's own ends and starts.
#
# They are what a time series needs and a record cannot give: numbers that only grow. They live beside the
# node's other volatile state and start from 0 when the node does, as Prometheus expects of a counter.


SCHEMA = "gpumem-counters/1"
RATIO_BOUNDS = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0)
"""Upper bounds of the buckets of estimate ÷ peak; up to 1 the estimate was too low."""


@dataclass
class Tally:
    """What has been counted so far."""

    ended: Dict[str, int] = field(default_factory=dict)
    """State in small letters → runs that ended so."""
    out_of_memory: int = 0
    restarted: int = 0
    """Runs that were not their job's first."""
    faults: int = 0
    energy_j: float = 0.0
    ratios: List[int] = field(default_factory=lambda: [0] * (len(RATIO_BOUNDS) + 1))
    """Estimate ÷ peak, each bucket by itself; the last one is for all above."""
    ratio_sum: float = 0.0

    def add(self, record: JobRecord) -> None:
        """Count one run that has ended, by its record."""
        state = record.known_state.lower()
        self.ended[state] = self.ended.get(state, 0) + 1
        self.out_of_memory += record.out_of_memory
        self.restarted += record.restarts > 0
        self.faults += not verdicts.FAULTS.isdisjoint(record.hints)
        self.energy_j += record.measured.energy_j or 0.0
        estimate, peak = record.claimed.estimate_mib, record.measured.peak_mib
        if estimate and peak:
            ratio = estimate / peak
            place = next((n for n, bound in enumerate(RATIO_BOUNDS) if ratio <= bound), len(RATIO_BOUNDS))
            self.ratios[place] += 1
            self.ratio_sum += ratio

    def save(self, path: Path) -> None:
        """For the next sampler."""
        write_json(path, {"schema": SCHEMA, **vars(self)}, mode=0o600)


def load_tally(path: Path) -> Tally:
    """The counts of the samplers before; a file that is no such thing is a fresh start."""
    table = read_json(path)
    if not isinstance(table, dict) or table.get("schema") != SCHEMA:
        return Tally()
    try:
        tally = Tally(**{key: value for key, value in table.items() if key != "schema"})
        return tally if len(tally.ratios) == len(RATIO_BOUNDS) + 1 else Tally()
    except TypeError:
        return Tally()


# The metrics of a node: one row each.
#
# The names are documented in docs/admin/monitoring.md and stay as they are. Sizes are bytes, shares are parts
# of 1, as Prometheus wants them.

GPU, JOB, JOB_ON_GPU, TALLY = "gpu", "job", "job on gpu", "tally"
"""Where a value is read from, each with labels of its own:

    GPU          a GPU's table in the live file: node, gpu, uuid
    JOB          a job's table there: node, jobid
    JOB_ON_GPU   a job's table for one of its GPUs: node, jobid, gpu, uuid
    TALLY        the counts of runs that have ended: node
"""


class Metric(NamedTuple):
    """One family: its name and help, and where its value is."""

    name: str
    about: str
    source: Optional[str] = None
    """None: it has code of its own below."""
    key: str = ""
    """In the source's table."""
    scale: int = 1
    """What turns that value into the exported unit."""
    kind: str = "gauge"


_ROWS: Tuple[Metric, ...] = (
    Metric("gpumem_sampler_running", "1 while the sampler runs; it ends when no shared job is here."),
    Metric("gpumem_sampler_info", "1; where its measurements come from."),
    Metric("gpumem_sampler_last_look_timestamp_seconds", "Unix time of what the file shows."),
    Metric("gpumem_gpu_info", "1; its labels name the GPU."),
    Metric("gpumem_gpu_memory_total_bytes", "Memory of the GPU.", GPU, "memory_total_mib", MIB),
    Metric("gpumem_gpu_memory_used_bytes", "Memory in use, by whomever.", GPU, "memory_used_mib", MIB),
    Metric(
        "gpumem_gpu_other_memory_bytes",
        "Memory of processes that are no shared job's.",
        GPU,
        "other_mib",
        MIB,
    ),
    Metric("gpumem_gpu_jobs", "Shared jobs on the GPU."),
    Metric("gpumem_gpu_mps_clients", "Processes on the GPU that are MPS clients.", GPU, "mps_clients"),
    Metric("gpumem_gpu_sm_active_ratio", "SM activity of the whole GPU.", GPU, "sm_active"),
    Metric("gpumem_gpu_dram_active_ratio", "Activity of its memory.", GPU, "dram_active"),
    Metric("gpumem_gpu_utilization_ratio", "Part of the time in which any kernel ran.", GPU, "utilization"),
    Metric("gpumem_gpu_power_watts", "Power.", GPU, "power_w"),
    Metric(
        "gpumem_gpu_held_idle_seconds",
        "How long jobs have held memory of the GPU while it did nothing.",
        GPU,
        "idle_s",
    ),
    Metric("gpumem_job_info", "1; its labels say whose job it is and how it shares."),
    Metric("gpumem_job_memory_bytes", "Memory that the job's processes hold on the GPU."),
    Metric("gpumem_job_memory_peak_bytes", "The most it has held there so far.", JOB_ON_GPU, "peak_mib", MIB),
    Metric(
        "gpumem_job_sm_active_ratio",
        "Its even part of the GPU's SM activity, mean so far.",
        JOB_ON_GPU,
        "sm_active_share",
    ),
    Metric(
        "gpumem_job_held_idle_seconds",
        "Time so far in which it held memory of the GPU while that did nothing.",
        JOB_ON_GPU,
        "idle_s",
    ),
    Metric(
        "gpumem_job_memory_limit_bytes",
        "What its shards stand for, on each of its GPUs.",
        JOB,
        "limit_mib",
        MIB,
    ),
    Metric("gpumem_job_estimate_bytes", "The peak that was estimated.", JOB, "estimate_mib", MIB),
    Metric("gpumem_job_request_bytes", "What was asked for.", JOB, "request_mib", MIB),
    Metric("gpumem_job_shards", "Its shards on each of its GPUs.", JOB, "shards"),
    Metric("gpumem_job_processes", "Its GPU processes.", JOB, "processes"),
    Metric("gpumem_job_restarts", "How often it was requeued before.", JOB, "restarts"),
    Metric("gpumem_job_energy_joules", "Its even part of its GPUs' energy so far.", JOB, "energy_j"),
    Metric("gpumem_runs_ended_total", "Runs of shared jobs that ended here, by state.", kind="counter"),
    Metric(
        "gpumem_runs_restarted_total",
        "Those of them that were not their job's first.",
        TALLY,
        "restarted",
        kind="counter",
    ),
    Metric(
        "gpumem_runs_out_of_memory_total",
        "Those that ran out of GPU memory.",
        TALLY,
        "out_of_memory",
        kind="counter",
    ),
    Metric("gpumem_runs_faulted_total", "Those that a GPU fault ended.", TALLY, "faults", kind="counter"),
    Metric("gpumem_runs_energy_joules_total", "Energy of the runs that ended.", kind="counter"),
    Metric(
        "gpumem_estimate_to_peak_ratio", "Estimate ÷ measured peak of the runs that ended.", kind="histogram"
    ),
)
METRICS: Mapping[str, Metric] = {metric.name: metric for metric in _ROWS}
"""By name, in the order of the file."""
BY_SOURCE: Mapping[str, Tuple[Metric, ...]] = {
    source: tuple(metric for metric in _ROWS if metric.source == source)
    for source in (GPU, JOB, JOB_ON_GPU, TALLY)
}


_LONGEST_LABEL = 64

Number = Union[int, float]
Labels = Tuple[Tuple[str, str], ...]
Sample = Tuple[str, Labels, Number]
"""(suffix of the name, labels, value)"""


class Families:
    """Samples by family, in the order of METRICS."""

    def __init__(self) -> None:
        self._samples: Dict[str, List[Sample]] = {name: [] for name in METRICS}

    def add(self, name: str, labels: Labels, value: Any, scale: int = 1, suffix: str = "") -> None:
        """One sample, when there is a value."""
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            self._samples[name].append((suffix, labels, value * scale))

    def add_all(self, source: str, labels: Labels, table: Mapping[str, Any]) -> None:
        """All families that read their value from this table."""
        for metric in BY_SOURCE[source]:
            self.add(metric.name, labels, table.get(metric.key), metric.scale)

    def lines(self) -> Iterator[str]:
        """The text format; a family without samples is left out."""
        for name, samples in self._samples.items():
            if samples:
                metric = METRICS[name]
                yield f"# HELP {name} {_escaped_help(metric.about)}"
                yield f"# TYPE {name} {metric.kind}"
                for suffix, labels, value in samples:
                    yield f"{name}{suffix}{_written(labels)} {_number(value)}"


def render(live: Live, tally: Tally, *, running: bool, users: bool = True) -> str:
    """The whole file, from what the sampler saw last and what it has counted; `users`: name them."""
    families = Families()
    node = (("node", live.node),)
    families.add("gpumem_sampler_running", node, int(running))
    if live.source:
        families.add("gpumem_sampler_info", (*node, ("source", live.source)), 1)
    families.add("gpumem_sampler_last_look_timestamp_seconds", node, live.at)
    for uuid, gpu in sorted(live.gpus.items(), key=lambda item: (_order(item[1]), item[1].instance, item[0])):
        _add_gpu(families, node, uuid, gpu, live.jobs)
    for job_id, job in sorted(live.jobs.items()):
        _add_job(families, (*node, ("jobid", str(job_id))), job, live, users)
    _add_tally(families, node, tally)
    return "\n".join(families.lines()) + "\n"


def _add_gpu(families: Families, node: Labels, uuid: str, gpu: LiveGpu, jobs: Mapping[int, LiveJob]) -> None:
    labels = (*node, ("gpu", _gpu_name(gpu)), ("uuid", uuid))
    profile = (("mig_profile", profile_name(gpu.name) or ""), ("mig_instance", gpu.instance))
    families.add("gpumem_gpu_info", (*labels, ("name", gpu.name), *(profile if gpu.instance else ())), 1)
    families.add_all(GPU, labels, {**gpu._asdict(), **gpu.sample._asdict()})
    families.add("gpumem_gpu_jobs", labels, sum(uuid in job.gpus for job in jobs.values()))


def _add_job(families: Families, labels: Labels, job: LiveJob, live: Live, users: bool) -> None:
    user = (("user", job.user),) if users else ()
    families.add("gpumem_job_info", (*labels, *user, ("mode", job.mode)), 1)
    families.add_all(JOB, labels, {**job._asdict(), **job.measured._asdict()})
    for uuid in job.gpus:
        where = (*labels, ("gpu", _gpu_name(live.gpus.get(uuid, LiveGpu()))), ("uuid", uuid))
        families.add("gpumem_job_memory_bytes", where, job.now_mib.get(uuid), MIB)
        families.add_all(JOB_ON_GPU, where, job.measured.gpu.get(uuid, GpuFigures())._asdict())


def _add_tally(families: Families, node: Labels, tally: Tally) -> None:
    for state, runs in sorted(tally.ended.items()):
        families.add("gpumem_runs_ended_total", (*node, ("state", state)), runs)
    families.add_all(TALLY, node, vars(tally))
    if tally.energy_j:
        families.add("gpumem_runs_energy_joules_total", node, round(tally.energy_j, 1))
    ratio, below = "gpumem_estimate_to_peak_ratio", 0
    for bound, runs in zip((*map(str, RATIO_BOUNDS), "+Inf"), tally.ratios):
        below += runs
        families.add(ratio, (*node, ("le", bound)), below, suffix="_bucket")
    families.add(ratio, node, round(tally.ratio_sum, 6), suffix="_sum")
    families.add(ratio, node, below, suffix="_count")


def _gpu_name(gpu: LiveGpu) -> str:
    return "" if gpu.number is None else str(gpu.number)


def _order(gpu: LiveGpu) -> int:
    return -1 if gpu.number is None else gpu.number


def _written(labels: Labels) -> str:
    return "{" + ",".join(f'{key}="{_escaped_label(value)}"' for key, value in labels) + "}"


def _escaped_label(value: str) -> str:
    """User and GPU names may hold anything; control characters would only be a nuisance downstream."""
    return printable(value[:_LONGEST_LABEL]).replace("\\", "\\\\").replace('"', '\\"')


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: Number) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


# Keeps the node's counts and writes its metrics file, seldom; the sampler calls it.

_EVERY_S = 15.0
"""Between two writes of the file: as often as Prometheus scrapes by default."""


class Exporter:
    """One node's metrics."""

    def __init__(self, folder: RunFolder, config: NodeConfig, node: str) -> None:
        self._folder = folder
        self._config = config
        self._node = node
        self._tally = load_tally(folder.counters)
        self._written = float("-inf")

    def ended(self, job_id: int, restarts: int) -> None:
        """Count a run whose record is closed."""
        record = find_record(self._config.spool, job_id, restarts, self._node)
        if record is not None and record.end is not None:
            self.count(record)

    def count(self, record: JobRecord) -> None:
        """Count a run by its record."""
        self._tally.add(record)
        self._tally.save(self._folder.counters)

    def write(self, live: Live, now: float) -> None:
        """The file, when the site wants one and it is due."""
        if self._config.prometheus_file is not None and now - self._written >= _EVERY_S:
            self._written = now
            self._write(live, running=True)

    def close(self) -> None:
        """The sampler ends: its jobs' and GPUs' series end with it, the counts stay."""
        if self._config.prometheus_file is not None:
            self._write(Live(node=self._node), running=False)

    def _write(self, live: Live, *, running: bool) -> None:
        if self._config.prometheus_file is not None:
            text = render(live, self._tally, running=running, users=self._config.prometheus_users)
            write_atomic(self._config.prometheus_file, text, mode=0o644)
