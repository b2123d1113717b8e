"""What Slurm's own accounting knows of jobs, joined with the index of their records."""

from __future__ import annotations

import sqlite3
import time
from typing import Dict, Iterable, List, Sequence

from slurm_gpumem.accounting.index import IndexWriter
from slurm_gpumem.accounting.schema import FAILED_WORD
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.comment import parse_end
from slurm_gpumem.formats.verdicts import OOM
from slurm_gpumem.slurm.client import COMMANDS, SlurmClient
from slurm_gpumem.slurm.state.queue import FINAL
from slurm_gpumem.slurm.state.sacct import SlurmRow, ask_runs

_BATCH = 400
_BUDGET_S = 1.0
"""For one report; the latest jobs are asked about first, what is left the next time."""
_ASK_AGAIN_S = 600.0
"""After an answer that was an error."""
_GIVE_UP_AFTER_S = 3600.0
"""A job that Slurm does not know an hour after its end is not asked about again."""
_NO_NAME_YET = "allocation"
"""What slurmdbd calls a job whose end reached it before its start did."""
_SAME_JOB = "(cluster, uid) = (SELECT cluster, uid FROM job WHERE id = ?)"
"""Besides its number."""


def join_slurm(
    connection: sqlite3.Connection,
    *,
    force: bool = False,
    budget_s: float = _BUDGET_S,
    client: SlurmClient = COMMANDS,
) -> int:
    """Ask about jobs that ended since; the number that Slurm knew. Never fails: the index says why not."""
    meta = dict(connection.execute("SELECT key, value FROM meta WHERE key LIKE 'slurm%'"))
    # abs: a question in the future was before the clock was set back.
    lately = abs(time.time() - float(meta.get("slurm_asked", 0))) < _ASK_AGAIN_S
    if meta.get("slurm") and not force and lately:
        return 0
    until, joined = time.monotonic() + budget_s, 0
    why = ""
    below = float("inf")
    while time.monotonic() < until:
        wanted = connection.execute(
            "SELECT job_id, start FROM job WHERE joined IS NULL AND head = 1 AND end IS NOT NULL "
            "AND start < ? ORDER BY start DESC LIMIT ?",
            (below, _BATCH),
        ).fetchall()
        if not wanted:
            break
        below = min(start for _, start in wanted)
        try:
            rows = ask_runs([job_id for job_id, _ in wanted], client)
        except SlurmError as error:
            why = str(error).splitlines()[0]
            break
        joined += apply(connection, [job_id for job_id, _ in wanted], rows)
    else:
        why = meta.get("slurm", "")
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('slurm', ?)", (why,))
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('slurm_asked', ?)", (str(time.time()),))
    return joined


def apply(connection: sqlite3.Connection, asked: Iterable[int], rows: Sequence[SlurmRow]) -> int:
    """Put Slurm's answer into the index, in one transaction; the number of jobs it was about."""
    by_job: Dict[int, List[SlurmRow]] = {}
    for row in rows:
        by_job.setdefault(row.job_id, []).append(row)
    connection.execute("BEGIN IMMEDIATE")
    try:
        writer = IndexWriter(connection)
        joined = sum(_apply_one(connection, writer, job_id, by_job.get(job_id, ())) for job_id in asked)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    return joined


def _apply_one(db: sqlite3.Connection, writer: IndexWriter, job_id: int, runs: Sequence[SlurmRow]) -> bool:
    heads = db.execute(
        "SELECT job.id, cluster.text, user.text, end FROM job "
        "JOIN word AS cluster ON cluster.id = job.cluster JOIN word AS user ON user.id = job.user "
        "WHERE job_id = ? AND head = 1",
        (job_id,),
    ).fetchall()
    joined = False
    for head, cluster, user, end in heads:
        # The same number may be another cluster's job, or an older one's from before the count started again.
        mine = [run for run in runs if run.cluster in ("", cluster) or not cluster]
        mine = [run for run in mine if run.user in ("", user)]
        late = end is not None and time.time() - end > _GIVE_UP_AFTER_S
        if mine and mine[-1].state in FINAL and (late or mine[-1].name != _NO_NAME_YET):
            _put(db, writer, job_id, head, mine)
            joined = True
        elif not mine and late:
            db.execute("UPDATE job SET joined = 0 WHERE id = ?", (head,))
    return joined


def _put(
    db: sqlite3.Connection, writer: IndexWriter, job_id: int, head: int, runs: Sequence[SlurmRow]
) -> None:
    first, last, words = runs[0], runs[-1], writer.table.words
    ready = max((moment for moment in (first.submit, first.eligible) if moment), default=None)
    wait = max(0.0, first.start - ready) if first.start and ready else None
    db.execute(
        f"UPDATE job SET account = ? WHERE job_id = ? AND {_SAME_JOB}",
        (words[last.account], job_id, head),
    )
    db.execute(
        "UPDATE job SET job_name = ?, submit = ?, wait_s = ?, slurm_state = ?, joined = 1, "
        "array_job = coalesce(?, array_job), array_task = coalesce(?, array_task) WHERE id = ?",
        (
            last.name,
            first.submit,
            wait,
            words[last.state],
            last.array_job,
            last.array_task,
            head,
        ),
    )
    seen = parse_end(last.comment)
    if seen is not None and seen.saw == OOM:
        # Only of a run that failed: some programs catch the error and go on.
        db.execute(
            f"UPDATE job SET oom = 1 WHERE job_id = ? AND restarts = ? AND own_state = ? AND {_SAME_JOB}",
            (job_id, seen.run, FAILED_WORD, head),
        )
    writer.fold(job_id)
