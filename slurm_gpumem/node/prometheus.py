"""The node's shared GPUs for Prometheus: a text file that node_exporter's textfile collector picks up.

The names are documented in docs/admin/monitoring.md and stay as they are. Sizes are bytes, shares are parts
of 1, as Prometheus wants them. What is not known is left out, never 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, Optional, Tuple, Union

from slurm_gpumem.formats.job_record import GpuFigures
from slurm_gpumem.formats.live import Live, LiveGpu, LiveJob
from slurm_gpumem.node.tally import RATIO_BOUNDS, Tally
from slurm_gpumem.units import MIB

_LONGEST_LABEL = 64

Number = Union[int, float]
Labels = Tuple[Tuple[str, str], ...]
Sample = Tuple[str, Labels, Number]
"""(suffix of the name, labels, value)"""


@dataclass(frozen=True)
class Metric:
    """One family."""

    name: str
    kind: str
    about: str


METRICS: Dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "gpumem_sampler_running", "gauge", "1 while the sampler runs; it ends when no shared job is here."
        ),
        Metric("gpumem_sampler_info", "gauge", "1; where its measurements come from."),
        Metric("gpumem_sampler_last_look_timestamp_seconds", "gauge", "Unix time of what the file shows."),
        Metric("gpumem_gpu_info", "gauge", "1; its labels name the GPU."),
        Metric("gpumem_gpu_memory_total_bytes", "gauge", "Memory of the GPU."),
        Metric("gpumem_gpu_memory_used_bytes", "gauge", "Memory in use, by whomever."),
        Metric("gpumem_gpu_other_memory_bytes", "gauge", "Memory of processes that are no shared job's."),
        Metric("gpumem_gpu_jobs", "gauge", "Shared jobs on the GPU."),
        Metric("gpumem_gpu_mps_clients", "gauge", "Processes on the GPU that are MPS clients."),
        Metric("gpumem_gpu_sm_active_ratio", "gauge", "SM activity of the whole GPU."),
        Metric("gpumem_gpu_dram_active_ratio", "gauge", "Activity of its memory."),
        Metric("gpumem_gpu_utilization_ratio", "gauge", "Part of the time in which any kernel ran."),
        Metric("gpumem_gpu_power_watts", "gauge", "Power."),
        Metric("gpumem_job_info", "gauge", "1; its labels say whose job it is and how it shares."),
        Metric("gpumem_job_memory_bytes", "gauge", "Memory that the job's processes hold on the GPU."),
        Metric("gpumem_job_memory_peak_bytes", "gauge", "The most it has held there so far."),
        Metric("gpumem_job_sm_active_ratio", "gauge", "Its even part of the GPU's SM activity, mean so far."),
        Metric("gpumem_job_memory_limit_bytes", "gauge", "What its shards stand for, on each of its GPUs."),
        Metric("gpumem_job_estimate_bytes", "gauge", "The peak that was estimated."),
        Metric("gpumem_job_request_bytes", "gauge", "What was asked for."),
        Metric("gpumem_job_shards", "gauge", "Its shards on each of its GPUs."),
        Metric("gpumem_job_processes", "gauge", "Its GPU processes."),
        Metric("gpumem_job_restarts", "gauge", "How often it was requeued before."),
        Metric("gpumem_job_energy_joules", "gauge", "Its even part of its GPUs' energy so far."),
        Metric("gpumem_runs_ended_total", "counter", "Runs of shared jobs that ended here, by state."),
        Metric("gpumem_runs_restarted_total", "counter", "Those of them that were not their job's first."),
        Metric("gpumem_runs_out_of_memory_total", "counter", "Those that ran out of GPU memory."),
        Metric("gpumem_runs_faulted_total", "counter", "Those that a GPU fault ended."),
        Metric("gpumem_runs_energy_joules_total", "counter", "Energy of the runs that ended."),
        Metric(
            "gpumem_estimate_to_peak_ratio", "histogram", "Estimate ÷ measured peak of the runs that ended."
        ),
    )
}

_OF_SAMPLE = {
    "memory_total_mib": ("gpumem_gpu_memory_total_bytes", MIB),
    "memory_used_mib": ("gpumem_gpu_memory_used_bytes", MIB),
    "sm_active": ("gpumem_gpu_sm_active_ratio", 1),
    "dram_active": ("gpumem_gpu_dram_active_ratio", 1),
    "utilization": ("gpumem_gpu_utilization_ratio", 1),
    "power_w": ("gpumem_gpu_power_watts", 1),
}
"""Fields of GpuSample."""


class Families:
    """Samples by family, in the order of METRICS."""

    def __init__(self) -> None:
        self._samples: Dict[str, List[Sample]] = {name: [] for name in METRICS}

    def add(
        self, name: str, labels: Labels, value: Optional[Number], scale: int = 1, suffix: str = ""
    ) -> None:
        """One sample, when there is a value."""
        if value is not None and math.isfinite(value):
            self._samples[name].append((suffix, labels, value * scale))

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
    for uuid, gpu in sorted(live.gpus.items(), key=lambda item: (_order(item[1]), item[0])):
        _add_gpu(families, node, uuid, gpu, live.jobs)
    for job_id, job in sorted(live.jobs.items()):
        _add_job(families, (*node, ("jobid", str(job_id))), job, live, users)
    _add_tally(families, node, tally)
    return "\n".join(families.lines()) + "\n"


def _add_gpu(families: Families, node: Labels, uuid: str, gpu: LiveGpu, jobs: Mapping[int, LiveJob]) -> None:
    labels = (*node, ("gpu", _gpu_name(gpu)), ("uuid", uuid))
    families.add("gpumem_gpu_info", (*labels, ("name", gpu.name)), 1)
    for field, (name, scale) in _OF_SAMPLE.items():
        families.add(name, labels, getattr(gpu.sample, field), scale)
    families.add("gpumem_gpu_other_memory_bytes", labels, gpu.other_mib, MIB)
    families.add("gpumem_gpu_mps_clients", labels, gpu.mps_clients)
    families.add("gpumem_gpu_jobs", labels, sum(uuid in job.gpus for job in jobs.values()))


def _add_job(families: Families, labels: Labels, job: LiveJob, live: Live, users: bool) -> None:
    user = (("user", job.user),) if users else ()
    families.add("gpumem_job_info", (*labels, *user, ("mode", job.mode)), 1)
    families.add("gpumem_job_memory_limit_bytes", labels, job.measured.limit_mib, MIB)
    families.add("gpumem_job_estimate_bytes", labels, job.estimate_mib, MIB)
    families.add("gpumem_job_request_bytes", labels, job.request_mib, MIB)
    families.add("gpumem_job_shards", labels, job.measured.shards)
    families.add("gpumem_job_processes", labels, job.processes)
    families.add("gpumem_job_restarts", labels, job.restarts)
    families.add("gpumem_job_energy_joules", labels, job.measured.energy_j)
    for uuid in job.gpus:
        where = (*labels, ("gpu", _gpu_name(live.gpus.get(uuid, LiveGpu()))), ("uuid", uuid))
        figures = job.measured.gpu.get(uuid, GpuFigures())
        families.add("gpumem_job_memory_bytes", where, job.now_mib.get(uuid), MIB)
        families.add("gpumem_job_memory_peak_bytes", where, figures.peak_mib, MIB)
        families.add("gpumem_job_sm_active_ratio", where, figures.sm_active_share)


def _add_tally(families: Families, node: Labels, tally: Tally) -> None:
    for state, runs in sorted(tally.ended.items()):
        families.add("gpumem_runs_ended_total", (*node, ("state", state)), runs)
    families.add("gpumem_runs_restarted_total", node, tally.restarted)
    families.add("gpumem_runs_out_of_memory_total", node, tally.out_of_memory)
    families.add("gpumem_runs_faulted_total", node, tally.faults)
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
    shown = value[:_LONGEST_LABEL]
    if not shown.isprintable():
        shown = "".join(letter if letter.isprintable() else "?" for letter in shown)
    return shown.replace("\\", "\\\\").replace('"', '\\"')


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: Number) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
