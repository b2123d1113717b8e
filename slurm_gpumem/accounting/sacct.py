"""What Slurm's own accounting knows of jobs: `sacct --json`, whose shape differs from version to version.

22.05 writes plain numbers and one state; later versions {"set", "infinite", "number"} and lists of states.
A field that is missing or of another shape is not known; nothing here fails over it.
"""

from __future__ import annotations

import json
import sqlite3
import time
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.accounting.index import IndexWriter
from slurm_gpumem.accounting.schema import FAILED_WORD
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.comment import parse_end
from slurm_gpumem.formats.verdicts import OOM

_BATCH = 400
_TIMEOUT_S = 5.0
_BUDGET_S = 1.0
"""For one report; the latest jobs are asked about first, what is left the next time."""
_ASK_AGAIN_S = 600.0
"""After an answer that was an error."""
_GIVE_UP_AFTER_S = 3600.0
"""A job that Slurm does not know an hour after its end is not asked about again."""
_FINAL = frozenset(
    (
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    )
)
_TEXT = 64


class SlurmRow(NamedTuple):
    """One run of a job as slurmdbd has it."""

    job_id: int
    cluster: str
    user: str
    account: str
    name: str
    partition: str
    state: str
    submit: Optional[float]
    eligible: Optional[float]
    start: Optional[float]
    end: Optional[float]
    saw: str
    """The task epilog's verdict on the run that `saw_run` counts; written with its owner's rights."""
    saw_run: int


def join_slurm(connection: sqlite3.Connection, *, force: bool = False, budget_s: float = _BUDGET_S) -> int:
    """Ask about jobs that ended since; the number that Slurm knew. Never fails: the index says why not."""
    meta = dict(connection.execute("SELECT key, value FROM meta WHERE key LIKE 'slurm%'"))
    if meta.get("slurm") and not force and time.time() - float(meta.get("slurm_asked", 0)) < _ASK_AGAIN_S:
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
            rows = ask([job_id for job_id, _ in wanted])
        except SlurmError as error:
            why = str(error).splitlines()[0]
            break
        joined += apply(connection, [job_id for job_id, _ in wanted], rows)
    else:
        why = meta.get("slurm", "")
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('slurm', ?)", (why,))
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('slurm_asked', ?)", (str(time.time()),))
    return joined


def run(argv: Sequence[str], *, timeout_s: float) -> str:
    """A Slurm command's stdout; the module for it is loaded only now, since most reports ask nothing."""
    from slurm_gpumem.slurm import client

    return client.run(argv, timeout_s=timeout_s)


def ask(job_ids: Sequence[int]) -> List[SlurmRow]:
    """Every run of these jobs, in order of their start; SlurmError when there is no accounting."""
    text = run(
        ["sacct", "--json", "--duplicates", "--allusers", "-j", ",".join(map(str, job_ids))],
        timeout_s=_TIMEOUT_S,
    )
    return parse(text)


def parse(text: str) -> List[SlurmRow]:
    """The rows of an answer; SlurmError when it is no JSON at all."""
    try:
        # Some versions write warnings of their plug-ins before it.
        table = json.loads(text[text.index("{") :])
    except (ValueError, RecursionError):
        raise SlurmError("sacct --json: the answer is not JSON") from None
    jobs = table.get("jobs") if isinstance(table, dict) else None
    rows = [row for row in map(_row, jobs if isinstance(jobs, list) else ()) if row is not None]
    return sorted(rows, key=lambda row: (row.job_id, row.start or row.submit or 0.0))


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
        if mine and mine[-1].state in _FINAL:
            _put(db, writer, job_id, head, mine)
            joined = True
        elif not mine and end is not None and time.time() - end > _GIVE_UP_AFTER_S:
            db.execute("UPDATE job SET joined = 0 WHERE id = ?", (head,))
    return joined


def _put(
    db: sqlite3.Connection, writer: IndexWriter, job_id: int, head: int, runs: Sequence[SlurmRow]
) -> None:
    first, last = runs[0], runs[-1]
    before = writer.touched("job_id = ?", (job_id,))
    ready = max((moment for moment in (first.submit, first.eligible) if moment), default=None)
    wait = max(0.0, first.start - ready) if first.start and ready else None
    db.execute(
        "UPDATE job SET account = ? WHERE job_id = ? AND cluster = (SELECT cluster FROM job WHERE id = ?)",
        (writer.word(last.account), job_id, head),
    )
    db.execute(
        "UPDATE job SET job_name = ?, submit = ?, wait_s = ?, slurm_state = ?, joined = 1 WHERE id = ?",
        (last.name, first.submit, wait, writer.word(last.state), head),
    )
    if last.saw == OOM:
        # Only of a run that failed: some programs catch the error and go on.
        db.execute(
            "UPDATE job SET oom = 1 WHERE job_id = ? AND restarts = ? AND own_state = ? "
            "AND cluster = (SELECT cluster FROM job WHERE id = ?)",
            (job_id, last.saw_run, FAILED_WORD, head),
        )
    writer.settle(before, writer.touched("job_id = ?", (job_id,)))


def _row(job: Any) -> Optional[SlurmRow]:
    if not isinstance(job, dict):
        return None
    job_id = _number(job.get("job_id"))
    if not job_id:
        return None
    times = job.get("time")
    times = times if isinstance(times, dict) else {}
    association = job.get("association")
    association = association if isinstance(association, dict) else {}
    comment = job.get("comment")
    comment = comment.get("job") if isinstance(comment, dict) else comment
    ended = parse_end(comment) if isinstance(comment, str) else None
    return SlurmRow(
        job_id=int(job_id),
        cluster=_text(job.get("cluster")) or _text(association.get("cluster")),
        user=_text(job.get("user")) or _text(association.get("user")),
        account=_text(job.get("account")) or _text(association.get("account")),
        name=_text(job.get("name")),
        partition=_text(job.get("partition")),
        state=_state(job.get("state")),
        submit=_number(times.get("submission")),
        eligible=_number(times.get("eligible")),
        start=_number(times.get("start")),
        end=_number(times.get("end")),
        saw=ended.saw if ended else "",
        saw_run=ended.run if ended else 0,
    )


def _state(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("current")
    if isinstance(value, list):
        value = value[0] if value else ""
    words = value.split() if isinstance(value, str) else []
    return words[0].rstrip("+")[:32] if words else ""


def _number(value: Any) -> Optional[float]:
    """A positive number, plain or as {"set": true, "number": …}."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    return float(value) if type(value) in (int, float) and 0 < value < 1e12 else None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    return (
        "".join("?" if letter < " " else letter for letter in value)
        .encode("utf-8", "replace")
        .decode()[:_TEXT]
    )


def coordinators() -> Tuple[str, ...]:
    """Users who coordinate an account; none without slurmdbd."""
    try:
        text = run(
            ["sacctmgr", "-n", "-P", "show", "account", "withcoord", "format=coordinators"],
            timeout_s=_TIMEOUT_S,
        )
    except SlurmError:
        return ()
    return tuple(
        sorted({name.strip() for line in text.splitlines() for name in line.split(",") if name.strip()})
    )
