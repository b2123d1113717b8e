"""squeue's lines as Slurm writes them."""

from __future__ import annotations

from slurm_gpumem.slurm.state.queue import Job

_WIDTHS = (32, 16, 40, 8, 8, 8, 12, 12, 24, 16, 16, 64, 128, 128, 8, 16, 16, 16, 400, 400, 1100)


def squeue_cells(*cells: str) -> str:
    """A line of the fixed columns that recovery asks for."""
    return "".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS))


def squeue_line(job: Job) -> str:
    """The line of a job."""
    return squeue_cells(
        job.name,
        job.state,
        job.reason,
        str(job.restarts),
        "1" if job.may_requeue else "0",
        "1" if job.batch else "0",
        job.status,
        "6" if job.het else "N/A",
        str(job.priority),
        str(job.uid),
        str(job.number),
        job.user,
        job.account,
        job.qos,
        str(job.nodes),
        "UNLIMITED" if job.limit_min is None else f"{job.limit_min}:00",
        f"0:{job.used_s}",
        str(job.nice),
        ",".join(job.partitions),
        job.request or "N/A",
        job.comment,
    )
