"""The metrics of a node: one row each. prometheus.py writes them.

The names are documented in docs/admin/monitoring.md and stay as they are. Sizes are bytes, shares are parts
of 1, as Prometheus wants them.
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.units import MIB

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
    """None: prometheus.py has code of its own for it."""
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
