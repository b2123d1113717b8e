"""Slurm's names for a job's states, as squeue and sacct print them."""

from __future__ import annotations

FINAL_CODES = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "DL": "DEADLINE", "F": "FAILED",
    "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PR": "PREEMPTED", "RV": "REVOKED", "TO": "TIMEOUT",
}  # fmt: skip
REQUEUED = "REQUEUED"
"""Of a run that was ended so that the job runs again."""
CODES = {**FINAL_CODES, "R": "RUNNING", "RQ": REQUEUED}
"""Short name → name, of the states that a report can show."""
FINAL = tuple(FINAL_CODES.values())
"""States of a job that ended for good."""
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
"""States of a job that is on no node."""
