"""The sbatch command of a decision, and running it: sbatch's own stdout and exit code."""

from __future__ import annotations

import os
import sys
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from slurm_gpumem.formats.comment import PART_NAMES, CommentRecord, append_record, format_record, join_sizes
from slurm_gpumem.slurm.gpu_options import ENVIRONMENT, REPLACED, GpuWish, Wishes
from slurm_gpumem.slurm.options import CommandLine, OptionTable
from slurm_gpumem.slurm.script import BatchScript
from slurm_gpumem.submission.decide import Decision
from slurm_gpumem.submission.settings import JobSettings

SBATCH = "sbatch"
_NAME_BYTES = 40


class Submission(NamedTuple):
    """One call of sbatch."""

    argv: Tuple[str, ...]
    """With the script's own path, even where a copy of it is handed over."""
    unset: Tuple[str, ...] = ()
    """Variables that sbatch must not see."""
    script: Optional[BatchScript] = None
    script_at: Optional[int] = None
    """The script's place in argv; None when sbatch reads it from standard input."""
    copied: bool = False
    """Whether `script` differs from the user's file (or cannot be read twice), and goes as a copy."""
    notes: Tuple[str, ...] = ()

    @property
    def environment(self) -> Dict[str, str]:
        """What sbatch runs with."""
        return {name: value for name, value in os.environ.items() if name not in self.unset}


def plain_submission(line: CommandLine, argv: List[str], script: Optional[BatchScript]) -> Submission:
    """sbatch with the very same words, less our own."""
    if any(option.ours for option in line.options):
        words, at = _with_script(line, [w for o in line.options if not o.ours for w in o.words])
        return Submission(tuple(words), script=script, script_at=at, copied=_unreadable(script))
    at = None if line.script_at is None else line.script_at + 1
    return Submission((SBATCH, *argv), script=script, script_at=at, copied=_unreadable(script))


def build_submission(
    line: CommandLine,
    decision: Decision,
    settings: JobSettings,
    wishes: Wishes,
    wish: GpuWish,
    script: Optional[BatchScript],
    table: OptionTable,
    *,
    change_nothing: bool,
) -> Submission:
    """The user's words, with the GPU request replaced and what goes with it added."""
    dropped = REPLACED if decision.shared else frozenset({"gres"}) if decision.request else frozenset()
    added = [] if change_nothing else [*_gpu_words(decision, wish), *_host_words(decision, wishes)]
    notes = []
    if not change_nothing and not wishes.any_of("open-mode"):
        added.append("--open-mode=append")
    if decision.need:
        record = record_of(decision, settings, wishes)
        told = described(record, decision, settings)._replace(mode="observe" if change_nothing else "")
        written = wishes.get("comment")
        # Where the user's comment leaves little room, the job's description goes first.
        comment = append_record(written, format_record(told)) or append_record(written, format_record(record))
        if comment is None:
            notes.append("the comment is too long for our record behind it; the job goes without")
        else:
            dropped = dropped | {"comment"}
            added.append(f"--comment={comment}")
    kept = [word for o in line.options if not o.ours and o.name not in dropped for word in o.words]
    words, at = _with_script(line, [*kept, *added])
    changed = script
    if script is not None and decision.shared:
        # --gres on the command line overrides the script's; the others have no word that takes them back.
        changed = script.without(lambda option: option.name in REPLACED - {"gres"}, table)
        if changed is not script:
            notes.append(f"the GPU options of {script.name} are taken out of the copy that is submitted")
    if script is not None and decision.shared:
        notes += _unset_variables(script)
    unset = tuple(
        variable
        for name, variable in ENVIRONMENT.items()
        if decision.shared and name in REPLACED - {"gres"} and variable in os.environ
    )
    if decision.shared and wishes.get("mem") in ("0", "0M", "0G"):
        notes.append("--mem=0 takes the node's whole memory: nobody else can share its GPUs")
    copied = changed is not script or _unreadable(script)
    return Submission(tuple(words), unset, changed, at, copied, tuple(notes))


def record_of(decision: Decision, settings: JobSettings, wishes: Wishes) -> CommentRecord:
    """What the plug-in and the hooks read in the job's comment; shards=0: the job is not to be shared."""
    estimate, request, need = decision.estimate, decision.request, decision.need
    used = estimate.utilization if estimate else None
    requeue = settings.on_oom == "requeue" and not wishes.any_of("no-requeue")
    return CommentRecord(
        estimate_mib=estimate.peak_mib if estimate else None,
        request_mib=need.request_mib if need else None,
        estimator=estimate.estimator if estimate else "mem",
        via="line" if decision.by_line else "",
        base=join_sizes(estimate.base) if estimate and estimate.base else "",
        gpu=(estimate.gpu if estimate else request.gpu_type if request else None) or "",
        batch=estimate.job.batch_size if estimate else None,
        shards=request.units if request and not request.whole_gpu else 0,
        sm=round(used.sm_active) if used else None,
        dram=round(used.dram_active) if used else None,
        slow=f"{decision.activity.limit:g}" if decision.activity else "",
        on_oom="requeue" if requeue else "fail",
        tell="end" if settings.end_line else "",
    )


def described(record: CommentRecord, decision: Decision, settings: JobSettings) -> CommentRecord:
    """The record with what reports tell of the job besides, and what its peak is remembered by."""
    estimate, summary = decision.estimate, decision.summary
    if estimate is None:
        return record
    from slurm_gpumem.estimators.remembered import variant

    name = os.path.splitext(os.path.basename(settings.model or ""))[0] or (summary.name if summary else "")
    return record._replace(
        model=name[:_NAME_BYTES],
        fingerprint=decision.fingerprint or "",
        optimizer=estimate.job.optimizer,
        precision=estimate.job.precision,
        variant=variant(estimate.job),
        parts=join_sizes(estimate.parts.values()) if tuple(estimate.parts) == PART_NAMES else "",
    )


def run_submission(submission: Submission) -> int:
    """Become sbatch; where a copy of the script must be cleared away afterwards, wait for it instead."""
    sys.stdout.flush()
    sys.stderr.flush()
    argv, env = list(submission.argv), submission.environment
    if submission.script is not None and submission.script_at is None:
        _standard_input(submission.script.data)
    if not submission.copied or submission.script_at is None:
        try:
            os.execvpe(SBATCH, argv, env)
        except OSError as error:
            raise _missing(error) from None
    import tempfile

    with tempfile.TemporaryDirectory(prefix="gpumem-") as folder:
        argv[submission.script_at] = write_copy(submission, folder)
        return _wait_for(argv, env)


def capture_submission(submission: Submission) -> Tuple[int, str]:
    """Run sbatch and keep its stdout; its stderr goes where ours goes."""
    import subprocess
    import tempfile

    sys.stderr.flush()
    argv = list(submission.argv)
    script = submission.script
    with tempfile.TemporaryDirectory(prefix="gpumem-") as folder:
        if script is not None and submission.copied and submission.script_at is not None:
            argv[submission.script_at] = write_copy(submission, folder)
        given = script.data if script is not None and submission.script_at is None else None
        try:
            done = subprocess.run(
                argv, input=given, stdout=subprocess.PIPE, env=submission.environment, check=False
            )
        except OSError as error:
            raise _missing(error) from None
    return done.returncode, done.stdout.decode(errors="replace")


def write_copy(submission: Submission, folder: str) -> str:
    """The script as it is submitted, under its own name, which becomes the job's."""
    assert submission.script is not None
    name = os.path.basename(submission.script.path or "") or "job"
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(submission.script.data)
    return path


def shell_words(submission: Submission) -> str:
    """The command as one could type it."""
    import shlex

    words = list(submission.argv)
    if submission.unset:
        words = ["env", *(word for name in submission.unset for word in ("-u", name)), *words]
    return shlex.join(words)


def _gpu_words(decision: Decision, wish: GpuWish) -> List[str]:
    if decision.request is None:
        return []
    return ["--gres=" + ",".join([*wish.other_gres, decision.request.gres])]


def _host_words(decision: Decision, wishes: Wishes) -> List[str]:
    """CPUs and memory in proportion, unless the user asked; per-GPU figures become those of one GPU."""
    words = []
    per_gpu_cpus, per_gpu_memory = wishes.get("cpus-per-gpu"), wishes.get("mem-per-gpu")
    if not decision.shared:
        return []
    if not wishes.any_of("cpus-per-task", "ntasks", "ntasks-per-node", "mincpus"):
        cpus = per_gpu_cpus or decision.host.cpus
        words += [f"--cpus-per-task={cpus}"] if cpus else []
    if not wishes.any_of("mem", "mem-per-cpu"):
        memory = per_gpu_memory or (f"{decision.host.memory_mib}M" if decision.host.memory_mib else None)
        words += [f"--mem={memory}"] if memory else []
    return words


def _with_script(line: CommandLine, options: List[str]) -> Tuple[List[str], Optional[int]]:
    words = [SBATCH, *options]
    if line.script is None:
        return words, None
    if line.script.startswith("-") or line.script == ":":
        words.append("--")
    return [*words, line.script, *line.script_args], len(words)


def _unset_variables(script: BatchScript) -> List[str]:
    """A script that counts its GPUs by a variable which only whole-GPU options set would trip over it."""
    text = script.text()
    for name in ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPUS"):
        if f"${name}" in text.replace("{", "").replace(f"${name}_", ""):
            return [
                f"{script.name} reads ${name}, which a shared job does not have; $SLURM_GPUS_ON_NODE is 1"
            ]
    return []


def _unreadable(script: Optional[BatchScript]) -> bool:
    return script is not None and not script.again_readable


def _standard_input(data: bytes) -> None:
    """Put the script, which we have read, back where sbatch will read it."""
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        os.dup2(file.fileno(), 0)


def _wait_for(argv: List[str], env: Mapping[str, str]) -> int:
    import signal

    # Ctrl-C reaches sbatch too: let it decide, and clear the copy away after it.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pid = os.posix_spawnp(SBATCH, argv, env, setsigdef=[signal.SIGINT])
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except OSError as error:
        raise _missing(error) from None
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code


def _missing(error: OSError) -> Exception:
    from slurm_gpumem.slurm.client import missing

    return missing(SBATCH, error)
