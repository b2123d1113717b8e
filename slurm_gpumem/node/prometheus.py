"""The node's shared GPUs for Prometheus: a text file that node_exporter's textfile collector picks up.

The names are documented in docs/admin/monitoring.md and stay as they are. Sizes are bytes, shares are parts
of 1, as Prometheus wants them. What is not known is left out, never 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Union

from slurm_gpumem.node.tally import RATIO_BOUNDS, Tally
from slurm_gpumem.text import printable

_MIB = 1_048_576
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

_OF_GPU = {
    "memory_total_mib": ("gpumem_gpu_memory_total_bytes", _MIB),
    "memory_used_mib": ("gpumem_gpu_memory_used_bytes", _MIB),
    "other_mib": ("gpumem_gpu_other_memory_bytes", _MIB),
    "mps_clients": ("gpumem_gpu_mps_clients", 1),
    "sm_active": ("gpumem_gpu_sm_active_ratio", 1),
    "dram_active": ("gpumem_gpu_dram_active_ratio", 1),
    "utilization": ("gpumem_gpu_utilization_ratio", 1),
    "power_w": ("gpumem_gpu_power_watts", 1),
}
_OF_JOB = {
    "limit_mib": ("gpumem_job_memory_limit_bytes", _MIB),
    "estimate_mib": ("gpumem_job_estimate_bytes", _MIB),
    "request_mib": ("gpumem_job_request_bytes", _MIB),
    "shards": ("gpumem_job_shards", 1),
    "processes": ("gpumem_job_processes", 1),
    "restarts": ("gpumem_job_restarts", 1),
    "energy_j": ("gpumem_job_energy_joules", 1),
}


class Families:
    """Samples by family, in the order of METRICS."""

    def __init__(self) -> None:
        self._samples: Dict[str, List[Sample]] = {name: [] for name in METRICS}

    def add(self, name: str, labels: Labels, value: Any, scale: int = 1, suffix: str = "") -> None:
        """One sample, when there is a value."""
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
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


def render(live: Mapping[str, Any], tally: Tally, *, running: bool, users: bool = True) -> str:
    """The whole file, from what the sampler saw last and what it has counted; `users`: name them."""
    families = Families()
    node = (("node", str(live.get("node") or "")),)
    families.add("gpumem_sampler_running", node, int(running))
    if live.get("source"):
        families.add("gpumem_sampler_info", (*node, ("source", str(live["source"]))), 1)
    families.add("gpumem_sampler_last_look_timestamp_seconds", node, live.get("at"))
    jobs: Mapping[str, Any] = live.get("jobs") or {}
    for uuid, gpu in sorted((live.get("gpus") or {}).items(), key=lambda item: (_order(item[1]), item[0])):
        _add_gpu(families, node, uuid, gpu, jobs)
    for job_id, job in sorted(jobs.items(), key=lambda item: (len(item[0]), item[0])):
        _add_job(families, (*node, ("jobid", job_id)), job, live, users)
    _add_tally(families, node, tally)
    return "\n".join(families.lines()) + "\n"


def _add_gpu(
    families: Families, node: Labels, uuid: str, gpu: Mapping[str, Any], jobs: Mapping[str, Any]
) -> None:
    labels = (*node, ("gpu", _gpu_name(gpu)), ("uuid", uuid))
    families.add("gpumem_gpu_info", (*labels, ("name", str(gpu.get("name") or ""))), 1)
    for key, (name, scale) in _OF_GPU.items():
        families.add(name, labels, gpu.get(key), scale)
    families.add("gpumem_gpu_jobs", labels, sum(uuid in job.get("gpus", ()) for job in jobs.values()))


def _add_job(
    families: Families, labels: Labels, job: Mapping[str, Any], live: Mapping[str, Any], users: bool
) -> None:
    user = (("user", str(job.get("user") or "")),) if users else ()
    families.add("gpumem_job_info", (*labels, *user, ("mode", str(job.get("mode") or ""))), 1)
    for key, (name, scale) in _OF_JOB.items():
        families.add(name, labels, job.get(key), scale)
    for uuid in job.get("gpus", ()):
        gpu = (live.get("gpus") or {}).get(uuid) or {}
        where = (*labels, ("gpu", _gpu_name(gpu)), ("uuid", uuid))
        sums = (job.get("gpu") or {}).get(uuid) or {}
        families.add("gpumem_job_memory_bytes", where, (job.get("now_mib") or {}).get(uuid), _MIB)
        families.add("gpumem_job_memory_peak_bytes", where, sums.get("peak_mib"), _MIB)
        families.add("gpumem_job_sm_active_ratio", where, sums.get("sm_active_share"))


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


def _gpu_name(gpu: Mapping[str, Any]) -> str:
    return "" if gpu.get("number") is None else str(gpu["number"])


def _order(gpu: Mapping[str, Any]) -> int:
    number: Optional[int] = gpu.get("number")
    return -1 if number is None else number


def _written(labels: Labels) -> str:
    return "{" + ",".join(f'{key}="{_escaped_label(value)}"' for key, value in labels) + "}"


def _escaped_label(value: str) -> str:
    """User and GPU names may hold anything; control characters would only be a nuisance downstream."""
    return printable(value[:_LONGEST_LABEL]).replace("\\", "\\\\").replace('"', '\\"')


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: Number) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
