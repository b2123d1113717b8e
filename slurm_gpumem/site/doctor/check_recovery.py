"""Checks of recovery: the two hooks that belong together, time to save, jobs that a requeue left held."""

from __future__ import annotations

import re
from typing import Iterator

from slurm_gpumem.site.doctor.findings import Finding, critical, note, warning
from slurm_gpumem.site.setup.slurm_conf import RECOVERY_HOOK, value_of
from slurm_gpumem.site.snapshot import Snapshot
from slurm_gpumem.slurm.state.queue import REQUEUED_IN_GRACE_TIME

_KILL_WAIT_S = 30
_ONCE_AGAIN = (26, 5, 5)
"""The first Slurm that was seen not to run a preempted job again when it has finished; 24.11.5 does."""
_DOCS = "gpumem docs recovery has the three lines"


def recovery_is_whole(now: Snapshot) -> Iterator[Finding]:
    """EpilogSlurmctld requeues what TaskEpilog recognised: one without the other does nothing."""
    hook, task = value_of(now.config, "EpilogSlurmctld"), value_of(now.config, "TaskEpilog")
    if hook is None:
        yield note(
            "no-recovery",
            "no EpilogSlurmctld",
            "a job that runs out of GPU memory stays failed",
            f"{_DOCS}, if the site wants it to be run again",
        )
    elif not hook.endswith(RECOVERY_HOOK):
        yield note(
            "no-recovery",
            f"EpilogSlurmctld={hook} is not {RECOVERY_HOOK}",
            "a job that runs out of GPU memory stays failed, unless that calls ours",
            f"EpilogSlurmctld=.../{RECOVERY_HOOK} and next_epilog_slurmctld={hook} in hooks.conf beside it",
        )
    elif task is None:
        yield warning(
            "half-recovery",
            "EpilogSlurmctld is ours, but there is no TaskEpilog",
            "nobody looks why a job failed, so none is run again",
            "TaskEpilog=.../task_epilog.sh in slurm.conf",
        )


def recovery_runs(now: Snapshot) -> Iterator[Finding]:
    """Proven by the hook's own sign of life: 22.05 may show an EpilogSlurmctld and never run it."""
    beat = now.heartbeat
    if beat is None:
        return
    if not beat.configured:
        where = value_of(now.config, "StateSaveLocation") or "/var/spool/slurmctld"
        yield warning(
            "recovery-unproven",
            "whether EpilogSlurmctld runs cannot be seen: hooks.conf has no state_dir",
            "slurmctld may show the hook and never run it",
            f"state_dir={where} in the controller's hooks.conf",
        )
    elif beat.due is not None and (beat.ran is None or beat.ran < beat.due.at):
        yield critical(
            "recovery-not-run",
            f"job {beat.due.name} ended and EpilogSlurmctld did not run"
            + ("" if beat.ran is None else "; it ran for earlier ones"),
            "a job that runs out of GPU memory stays failed",
            "restart slurmctld (22.05 does not take a new EpilogSlurmctld from scontrol reconfigure); "
            "else state_dir in hooks.conf must be a folder that SlurmUser may write",
        )
    elif beat.ran is None:
        yield note(
            "recovery-unproven",
            "no job has ended since slurmctld started",
            "whether EpilogSlurmctld runs was not proven",
            "run a job (srun true) and gpumem doctor again",
        )


def preempted_jobs_can_save(now: Snapshot) -> Iterator[Finding]:
    """A batch job is told at the end of its grace time, by SIGTERM; what it has then is KillWait."""
    if "REQUEUE" not in (value_of(now.config, "PreemptMode") or ""):
        return
    wait = re.match(r"[0-9]+", value_of(now.config, "KillWait") or "")
    if wait and int(wait[0]) < _KILL_WAIT_S:
        yield note(
            "kill-wait",
            f"PreemptMode=REQUEUE and KillWait={wait[0]}",
            f"a preempted job has {wait[0]} s to save a checkpoint, whatever GraceTime says",
            f"KillWait={_KILL_WAIT_S} (Slurm's default) or as long as a save takes (gpumem docs slots)",
        )
    graced = [part["PartitionName"] for part in now.partitions if part.get("GraceTime", "0") not in ("0", "")]
    if graced and REQUEUED_IN_GRACE_TIME <= now.version < _ONCE_AGAIN:
        yield note(
            "grace-time",
            f"partition {', '.join(graced)}: GraceTime with PreemptMode=REQUEUE",
            "a batch job without steps that was preempted runs once more when it has finished",
            "GraceTime=0 and a KillWait that is long enough to save (gpumem docs slots)",
        )


def no_job_is_left_held(now: Snapshot) -> Iterator[Finding]:
    """A requeue that was killed half way is finished by the next one; until then its job waits."""
    if now.left_held:
        yield warning(
            "left-held",
            f"job {', '.join(now.left_held[:8])}: requeued after out of memory and still held",
            "its requeue was interrupted; the next one will finish it",
            "gpumem recover, as SlurmUser or root, does it now",
        )
