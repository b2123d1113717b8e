"""Summaries for jobstats and reportseff, written into Slurm's accounting: `gpumem collect --jobstats`.

After a job's end only `sacctmgr` can write an AdminComment, for root and who else administers slurmdbd.
EpilogSlurmctld could do it at once, but would delay every job of the cluster.
"""

from __future__ import annotations

import time
from typing import Dict, List, NamedTuple, Optional, Sequence

from slurm_gpumem.accounting.index import JobTable
from slurm_gpumem.accounting.schema import Row
from slurm_gpumem.accounting.store import Store
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.job_record import GpuFigures, JobRecord
from slurm_gpumem.formats.jobstats import GpuUse, NodeUse, format_summary
from slurm_gpumem.slurm.client import COMMANDS, SlurmClient, slurm_version
from slurm_gpumem.slurm.state.sacct import SlurmRow, ask_runs, set_admin_comment

_FIRST_VERSION = (23, 2, 0)
"""sacctmgr of earlier ones makes AdminComments lower-case, which destroys base64."""
_BATCH = 100
_AGE_S = 7 * 86_400.0
"""Jobs that ended longer ago are left: those that read summaries ask about new jobs."""


class Written(NamedTuple):
    """What a round did."""

    jobs: int = 0
    left: int = 0
    """Jobs that had a summary, or another comment of somebody's."""


def write_summaries(index: Store, *, budget_s: float, client: SlurmClient = COMMANDS) -> Written:
    """Write what is missing, the latest jobs first; SlurmError where this Slurm cannot."""
    if slurm_version(client) < _FIRST_VERSION:
        raise SlurmError(
            "no summaries for jobstats: before Slurm 23.02 sacctmgr makes AdminComments lower-case"
        )
    until, table, done = time.monotonic() + budget_s, JobTable(index.connection), Written()
    wanted = "joined = 1 AND head = 1 AND summed_up IS NULL AND end > ? ORDER BY end DESC LIMIT ?"
    while time.monotonic() < until:
        rows = list(table.rows(wanted, (time.time() - _AGE_S, _BATCH)))
        if not rows:
            break
        told: Dict[int, SlurmRow] = {
            run.job_id: run for run in ask_runs([row.job_id for row in rows], client)
        }
        for row in rows:
            written = _write(index.records_of(row), row, told.get(row.job_id), client)
            done = Written(done.jobs + (written is True), done.left + (written is False))
            index.connection.execute("UPDATE job SET summed_up = ? WHERE id = ?", (written is True, row.id))
    return done


def _write(
    records: Sequence[JobRecord], row: Row, known: Optional[SlurmRow], client: SlurmClient
) -> Optional[bool]:
    """Whether it was written; None where there is nothing to write."""
    if known is None or known.start is None or known.end is None:
        return None
    run_s = round(known.end - known.start)
    host = _host(known, len(records))
    nodes = [_node(record, host) for record in records] if host else []
    if run_s < 1 or not any(node.gpus for node in nodes):
        return None
    comment = format_summary(tuple(nodes), run_s, known.admin_comment)
    if comment is None:
        return False
    name = str(row.job_id) if row.array_job is None else f"{row.array_job}_{row.array_task}"
    return set_admin_comment(name, comment, client)


def _host(known: SlurmRow, nodes: int) -> Optional[NodeUse]:
    """Slurm's figures of CPUs and memory, as the mean of the nodes; None where it did not measure them."""
    if known.nodes != nodes or not known.cpus or known.cpu_s is None:
        return None
    if not known.memory_bytes or not known.used_bytes:
        return None
    sums = (known.cpu_s / nodes, known.memory_bytes // nodes, known.used_bytes // nodes)
    return NodeUse("", max(1, known.cpus // nodes), *sums, ())


def _node(record: JobRecord, host: NodeUse) -> NodeUse:
    measured = record.measured
    gpus: List[GpuUse] = []
    for place, uuid in enumerate(record.gpus):
        figures = measured.gpu.get(uuid, GpuFigures())
        memory = measured.limit_mib or figures.memory_mib
        if figures.peak_mib is not None and memory:
            number = place if figures.number is None else figures.number
            name = f"{number}:{figures.instance}" if figures.instance else str(number)
            gpus.append(GpuUse(name, figures.peak_mib, memory, _busy(figures, shared=bool(measured.met))))
    return host._replace(name=record.node, gpus=tuple(gpus))


def _busy(figures: GpuFigures, *, shared: bool) -> Optional[float]:
    """Its own part of the SM activity; of a job alone there the time with any kernel, as jobstats has it."""
    if not shared and figures.gpu_utilization is not None:
        return figures.gpu_utilization
    return figures.sm_active_share
