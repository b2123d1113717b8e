"""Whether a job runs in time slots: its owner's word, else the site's default for its partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping, Optional

from slurm_gpumem.errors import SlurmError, UsageError
from slurm_gpumem.slurm.submit.sbatch import SBATCH
from slurm_gpumem.units import seconds_text

if TYPE_CHECKING:
    from slurm_gpumem.submission.submission import Submission


def check_slot(asked: Submission) -> None:
    """UsageError where a job that asks for slots cannot have them."""
    seconds = asked.settings.slot_s
    if not seconds:
        return
    slot, least = asked.settings.spelled("slot"), asked.config.slots.least_s
    if seconds < least:
        raise UsageError(f"{slot}: a slot here is {seconds_text(least)} at least")
    if asked.raw.program != SBATCH:
        raise UsageError(f"{slot}: Slurm requeues batch jobs only, not those of {asked.raw.program}")
    if asked.raw.line.het_job or (asked.script is not None and asked.script.het_job):
        raise UsageError(f"{slot}: the parts of a heterogeneous job can only be requeued together")
    if asked.options.any_of("no-requeue"):
        raise UsageError(f"{slot} and --no-requeue exclude each other: after each slot the job is requeued")
    if not asked.gpus.gpus and not asked.gpus.shared_gres and not asked.settings.asks_for_share:
        raise UsageError(f"{slot}: the job asks for no GPU")


def slot_seconds(asked: Submission, fingerprint: Optional[str]) -> Optional[int]:
    """Seconds of one slot of the job; None where it has none. Its runs are remembered by `fingerprint`."""
    if asked.settings.slot_s is not None:
        return asked.settings.slot_s or None
    by_partition = asked.config.slots.partitions
    no = asked.observed or asked.raw.program != SBATCH or asked.options.any_of("no-requeue")
    if not by_partition or not fingerprint or no:
        return None
    return _default(by_partition, asked) if _saves_checkpoints(fingerprint) else None


def slot_note(seconds: int) -> str:
    """What its owner should know of it."""
    return (
        f"it runs in slots of {seconds_text(seconds)}: before each one's end it saves, waits behind others "
        "and goes on from its checkpoint (gpumem docs slots)"
    )


def _default(by_partition: Mapping[str, int], asked: Submission) -> Optional[int]:
    """The longest of its partitions' slots, where all of them have some."""
    from slurm_gpumem.submission.candidate_gpus import find_candidates

    try:
        found = [by_partition.get(name) for name in find_candidates(asked).partitions]
    except (SlurmError, UsageError):
        return None  # sbatch says in its own words what is wrong
    # No shorter than what the site lets jobs ask for: else no slot would follow the first.
    return max(*filter(None, found), asked.config.slots.least_s) if found and all(found) else None


def _saves_checkpoints(fingerprint: str) -> bool:
    from slurm_gpumem.estimators.remembered import remembered_files
    from slurm_gpumem.formats.remembered import read_savers

    return any(fingerprint in read_savers(path) for path in remembered_files())
