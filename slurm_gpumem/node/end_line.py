"""One line on what a job used, at the end of its own output: `python -I -m slurm_gpumem.node.end_line`.

The task epilog runs it as the job's user, for jobs that want it. Root opens no file of the user's: what was
measured comes from a file that the sampler lets the user read, and the output is opened with the user's own
rights. Nothing that goes wrong here fails the job.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import Optional, Sequence

from slurm_gpumem.config.node import load_node_config, run_dir
from slurm_gpumem.config.paths import site_config_path
from slurm_gpumem.errors import SlurmError
from slurm_gpumem.formats.notes import UsageNote, read_usage_note
from slurm_gpumem.node.jobs import RunFolder, valid_job_id
from slurm_gpumem.slurm import queue
from slurm_gpumem.slurm.client import Commands, SlurmClient
from slurm_gpumem.text import count

_STDERR = 2
_SCONTROL_S = 2.0
_CLOSE = 0.95
_MOST_COMPANIONS = 5


def main() -> int:
    """Entry point of the task epilog; always 0."""
    job_id = valid_job_id(os.environ.get("SLURM_JOB_ID", ""))
    if job_id is None:
        return 0
    note = read_usage_note(RunFolder(run_dir()).usage_file(job_id), job_id)
    config = load_node_config(site_config_path())
    slurm = Commands(config.slurm_env, config.slurm_bin)
    output = stdout_of(queue.job_name(os.environ), slurm)
    append(f"{line(note)}\n".encode("ascii", "replace"), output)
    return 0


def line(note: UsageNote) -> str:
    """The line; plain ASCII, since nobody knows the output's encoding."""
    job_id, peak, limit = note.job_id, note.peak_mib, note.limit_mib
    if peak is None or not note.samples:
        return f"gpumem: job {job_id}: its GPU memory was not measured on this node"
    granted = f" of {_gib(limit)}" if limit else ""
    if peak <= 0:
        return f"gpumem: job {job_id} used no GPU memory{f' of its {_gib(limit)} GiB' if limit else ''}"
    words = [f"gpumem: job {job_id} used {_gib(peak)}{granted} GiB of GPU memory{_estimated(note, peak)}"]
    if note.sm_active_share is not None:
        words.append(f"SM {note.sm_active_share * 100:.0f} %")
    if note.energy_j:
        words.append(f"{note.energy_j / 3600:.3g} Wh")
    words.append(f"on MIG {note.profile}" if note.profile and not note.met else _companions(note.met))
    if note.met and note.slowdown is not None:
        words.append(f"{note.slowdown:.2f} times as long as alone")
    return ", ".join(words) + _advice(note, peak)


def _estimated(note: UsageNote, peak: float) -> str:
    estimate = note.estimate_mib
    return "" if not estimate else f" (estimated {_gib(estimate)}, {round((estimate / peak - 1) * 100):+d} %)"


def _companions(jobs: Sequence[int]) -> str:
    if not jobs:
        return "alone on its GPU"
    more = f" and {len(jobs) - _MOST_COMPANIONS} more" if len(jobs) > _MOST_COMPANIONS else ""
    return f"with {', '.join(map(str, jobs[:_MOST_COMPANIONS]))}{more}"


def _advice(note: UsageNote, peak: float) -> str:
    if note.limit_mib and peak >= _CLOSE * note.limit_mib:
        return "; close to its limit, ask for more" if peak <= note.limit_mib else "; more than it was given"
    if note.shards and note.shard_mib:
        enough = -int(-peak // note.shard_mib)
        if note.request_mib and -(-note.request_mib // note.shard_mib) < note.shards:
            return f"; memory alone takes {enough} of its {count(note.shards, 'shard')}"
        if enough < note.shards:
            return f"; {count(enough, 'shard')} would have done"
    return ""


def stdout_of(name: Optional[str], slurm: SlurmClient) -> Optional[str]:
    """Where Slurm says that the job's output is; None when it does not answer."""
    try:
        return None if name is None else queue.stdout_of(slurm, name, timeout_s=_SCONTROL_S)
    except SlurmError:
        return None


def append(text: bytes, path: Optional[str]) -> None:
    """Behind what the job wrote: to its stdout, or where that is not to be had, to its stderr.

    A task epilog's own stderr is the job's, which mostly is the same file: then it is there already.
    """
    if path is not None and not _is_own_stderr(path):
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            handle = os.open(path, flags)
        except OSError:
            handle = None
        if handle is not None:
            try:
                # A pipe that nobody reads, a device or a terminal is no place for it.
                if stat.S_ISREG(os.fstat(handle).st_mode):
                    os.write(handle, text)
                    return
            finally:
                os.close(handle)
    if stat.S_ISREG(os.fstat(_STDERR).st_mode):
        os.write(_STDERR, text)


def _is_own_stderr(path: str) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(_STDERR))
    except OSError:
        return False


def _gib(mib: float) -> str:
    return f"{mib / 1024:.1f}"


if __name__ == "__main__":
    sys.exit(main())
