"""The command behind lua/cli_filter.lua: what plain sbatch, srun or salloc is to ask for.

`gpumem cli-filter PROGRAM PID` reads the options as JSON from standard input; descriptor 3 is that of process
PID. It prints the options to set. Whatever fails, the job goes as it was typed.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Dict, List, Optional

from slurm_gpumem import __version__
from slurm_gpumem.errors import GpumemError, UsageError
from slurm_gpumem.slurm.submit.filter_options import Filtered, answer, read_filtered
from slurm_gpumem.submission.job.settings import OwnOptions
from slurm_gpumem.submission.submission import NOTHING_ASKED, RawInput, Submission, read_submission
from slurm_gpumem.terminal.say import run_command, run_program, say

if TYPE_CHECKING:
    from slurm_gpumem.submission.plan import Plan

LIMIT_S = 3.0
"""Nobody waits longer for sbatch because of us, but for a trace."""
FIXED = ("cpus-per-gpu", "mem-per-gpu", "ntasks-per-gpu")
"""Options that Slurm's filter cannot take back, and that Slurm refuses beside shards."""
_STDIN = 3


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    if argv is None:
        run_program(lambda: _in_time(sys.argv[1:]))
    return run_command(lambda: _in_time(argv))


def _in_time(argv: List[str]) -> int:
    # We are no group of the terminal's, which may stop what writes to it from behind (stty tostop).
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    # Ends the process: what hangs here (a home directory that is away) is not asked twice.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        return _filter(argv)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _filter(argv: List[str]) -> int:
    if argv == ["--version"]:  # gpumem doctor asks whether this starts
        print(__version__)
        return 0
    if len(argv) != 2 or not (argv[1].isascii() and argv[1].isdigit()):
        raise UsageError("cli-filter PROGRAM PID is for lua/gpumem_filter.lua; type sbatch, srun or salloc")
    program, submitter = argv[0], int(argv[1])
    changes: Dict[str, str] = {}
    try:
        handed = read_filtered(sys.stdin.buffer.read(), program, submitter, _standard_input())
        changes = _decided(handed)
    except GpumemError as error:
        lines = [line for line in str(error).splitlines() if not line.startswith("Nothing was submitted")]
        say("\n".join([*lines, "The job goes to Slurm as it is."]))
    sys.stdout.buffer.write(answer(changes))
    sys.stdout.flush()
    return 0


def _standard_input() -> Optional[int]:
    try:
        os.fstat(_STDIN)
    except OSError:
        return None
    return _STDIN


def _decided(handed: Filtered) -> Dict[str, str]:
    if any(option.name == "uid" for option in handed.line.options):
        return {}  # root, for somebody else, whose files we would open
    asked = read_submission(
        RawInput(handed.line, OwnOptions({}), handed.script, program=handed.program, plain=True)
    )
    if asked.settings.model is not None and asked.goes_unchanged != NOTHING_ASKED:
        from slurm_gpumem.cli.gpusbatch import with_named_model

        asked = with_named_model(asked)
    for warning in asked.warnings:
        say(f"warning: {warning}")
    if asked.goes_unchanged == NOTHING_ASKED:
        return {}
    if asked.trace:
        asked = _traced(asked)
    return _changes(asked)


def _traced(asked: Submission) -> Submission:
    from slurm_gpumem.report.script_trace import shown_on
    from slurm_gpumem.submission.job_trace.before_submission import with_trace
    from slurm_gpumem.terminal.progress import StatusLine

    if asked.config.trace.where == "job":
        raise UsageError(
            "this site traces in jobs (trace.where): gpusbatch --trace submits one before yours."
        )
    signal.setitimer(signal.ITIMER_REAL, 0)
    with StatusLine() as line:
        after = with_trace(asked, shown_on(line))
    for note in after.notes:
        say(f"note: {note}")
    return after.asked


def _changes(asked: Submission) -> Dict[str, str]:
    """The options of the request; first what gives the job its share, last the record of it."""
    from slurm_gpumem.report.submission import submission_line
    from slurm_gpumem.slurm.submit.gpu_options import REPLACED
    from slurm_gpumem.submission.decide import decide
    from slurm_gpumem.submission.sbatch_call import build_call

    plan = _possible(decide(asked))
    planned = build_call(plan)
    part = plan.replaces
    if not asked.options.any_of("quiet"):
        for text in (submission_line(plan), *planned.notes):
            say(text)
        if part and asked.learns:
            say("for a whole GPU: GPUMEM=off sbatch ..., or #GPUMEM exclusive-gpu=yes in the script")
    for warning in plan.warnings:
        say(f"warning: {warning}")
    added = dict(planned.added)
    record = {"comment": added.pop("comment")} if "comment" in added else {}
    given = [name for name in sorted(REPLACED - {"gres"}) if part and asked.options.any_of(name)]
    return {**_in_its_own_option({**added, **dict.fromkeys(given, "")}), **record}


def _in_its_own_option(changes: Dict[str, str]) -> Dict[str, str]:
    """A whole GPU stays with --gpus-per-node: Slurm 26.05 refuses that beside --gres=gpu, even when empty."""
    gres = changes.get("gres", "").split(",")
    whole = [item[len("gpu:") :] for item in gres if item.startswith("gpu:")]
    if "gpus-per-node" not in changes or not whole:
        return changes
    others = ",".join(item for item in gres if not item.startswith("gpu:"))
    kept = {name: value for name, value in changes.items() if name != "gres"}
    return {**kept, **({"gres": others} if others else {}), "gpus-per-node": whole[0]}


def _possible(plan: Plan) -> Plan:
    """The plan, or the job's own GPU where it has an option that nobody can take back here."""
    held = [name for name in FIXED if plan.asked.options.any_of(name)]
    if not held or not plan.replaces:
        return plan
    instead = {"cpus-per-gpu": "--cpus-per-task", "mem-per-gpu": "--mem", "ntasks-per-gpu": "--ntasks"}
    reason = f"--{held[0]} goes with whole GPUs; with {instead[held[0]]} it would share one"
    return plan._replace(request=None, at_once=None, kept_because=reason)


if __name__ == "__main__":
    main()
