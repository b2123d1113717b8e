"""The node's metrics (metrics.py) in Prometheus' text format, for node_exporter's textfile collector.

What is not known is left out, never 0.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Union

from slurm_gpumem.node.metrics import BY_SOURCE, GPU, JOB, JOB_ON_GPU, METRICS, TALLY
from slurm_gpumem.node.tally import RATIO_BOUNDS, Tally
from slurm_gpumem.text import printable
from slurm_gpumem.units import MIB

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
    families.add_all(GPU, labels, gpu)
    families.add("gpumem_gpu_jobs", labels, sum(uuid in job.get("gpus", ()) for job in jobs.values()))


def _add_job(
    families: Families, labels: Labels, job: Mapping[str, Any], live: Mapping[str, Any], users: bool
) -> None:
    user = (("user", str(job.get("user") or "")),) if users else ()
    families.add("gpumem_job_info", (*labels, *user, ("mode", str(job.get("mode") or ""))), 1)
    families.add_all(JOB, labels, job)
    for uuid in job.get("gpus", ()):
        gpu = (live.get("gpus") or {}).get(uuid) or {}
        where = (*labels, ("gpu", _gpu_name(gpu)), ("uuid", uuid))
        families.add("gpumem_job_memory_bytes", where, (job.get("now_mib") or {}).get(uuid), MIB)
        families.add_all(JOB_ON_GPU, where, (job.get("gpu") or {}).get(uuid) or {})


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
