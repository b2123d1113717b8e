"""The node's metrics (metrics.py) in Prometheus' text format, for node_exporter's textfile collector.

What is not known is left out, never 0.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, Mapping, Tuple, Union

from slurm_gpumem.formats.gpu_names import profile_name
from slurm_gpumem.formats.job_record import GpuFigures
from slurm_gpumem.formats.live import Live, LiveGpu, LiveJob
from slurm_gpumem.node.sampler.counters import RATIO_BOUNDS, Tally
from slurm_gpumem.node.sampler.metrics import BY_SOURCE, GPU, JOB, JOB_ON_GPU, METRICS, TALLY
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
