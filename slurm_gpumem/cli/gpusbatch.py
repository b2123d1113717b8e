"""`gpusbatch`: sbatch that asks for just the GPU memory a job needs."""

from __future__ import annotations

import itertools
import os
import sys
from typing import TYPE_CHECKING, Dict, Iterable, List, NamedTuple, NoReturn, Optional

from slurm_gpumem.config.schema import JOB_SWITCHES
from slurm_gpumem.errors import GpumemError, TargetError, UsageError
from slurm_gpumem.slurm.submit.sbatch import (
    SALLOC,
    SBATCH,
    SRUN,
    SbatchCall,
    become_sbatch,
    installed_options,
    run_sbatch,
    submit_and_tell,
)
from slurm_gpumem.slurm.submit.sbatch_options import (
    NO_VALUE,
    REQUIRED,
    CommandLine,
    OptionSpec,
    read_command_line,
    salloc_table,
    sbatch_table,
    srun_table,
)
from slurm_gpumem.slurm.submit.script import BatchScript, ScriptError, read_script
from slurm_gpumem.submission.job.settings import OwnOptions
from slurm_gpumem.submission.submission import NOTHING_ASKED, RawInput, Submission, read_submission
from slurm_gpumem.terminal.say import run_command, run_program, say

if TYPE_CHECKING:
    from slurm_gpumem.submission.job_trace.before_submission import AfterTrace
    from slurm_gpumem.submission.plan import Plan
    from slurm_gpumem.submission.sbatch_call import PlannedCall


_ABOUT_THE_JOB = (
    "model", "batch-size", "optimizer", "precision", "gpu", "estimator", "gpu-mem", "on-oom",
    "grad-accumulation", "loss", "input", "input-dtype", "max-slowdown", "coverage", "torch",
    "module-loading", "strategy", "trace-or", "trace-tasks", "trace-limit",
    "slot",
)  # fmt: skip
_SWITCHES = ("dry-run", "explain", "json")
_NO_TRACE = "no-trace"
OUR_OPTIONS = (
    *(OptionSpec(name, "", REQUIRED, True) for name in _ABOUT_THE_JOB),
    *(OptionSpec(name, "", NO_VALUE, True) for name in (*JOB_SWITCHES, _NO_TRACE, *_SWITCHES)),
)

USAGE = """\
usage: gpusbatch [options] job.sh [options] [--] [arguments of job.sh]

Submits job.sh with sbatch, asking for as much of a GPU as its training needs.
Everything that is not listed here goes to sbatch (sbatch --help).

  --trace               run job.sh here without a GPU first, and ask for what it would allocate
  --trace-or WHAT       where that is not possible: stop (default) or whole-gpu
  --trace-tasks WHICH   of an array: first, last, ends, each, or tasks like 3,7; the largest counts
  --trace-limit S       seconds for one trace; default: the site's (120)
  --no-trace            not even where the site traces by default
  --model FILE          the model's summary (torchinfo, torchsummary, print(model), ...); - for standard
                        input; or its code, which is traced: train.py:build_model, timm:resnet50
  --input SHAPE         one sample's shape, like 3x224x224, for a summary without shapes (print(model));
                        of several inputs: 3x224x224+10
  --batch-size N        samples per step; default: the one in the job's command, else the summary's
  --optimizer NAME      adam (default), adamw, sgd, sgd-momentum, ...
  --precision NAME      fp32 (default), tf32, amp-fp16, amp-bf16, bf16
  --grad-accumulation N, --checkpointing, --channels-last, --loss NAME, --input-dtype NAME
  --torch VERSION, --module-loading NAME  the job's PyTorch (2.6) and how CUDA loads modules (lazy, eager)
  --strategy NAME       how a job uses several GPUs: ddp (default); fsdp, zero, ... are not estimated
  --gpu TYPE            the GPU to estimate for and run on; any: all that hold it; default: the partition's
  --estimator NAME      how to estimate; gpumem estimate --estimator all shows them
  --gpu-mem SIZE        ask for this much GPU memory (12G) instead of estimating
  --exclusive-gpu       a GPU for this job alone
  --max-slowdown X      how many times as long its steps may take while sharing (1.15); default: the site's
  --coverage X          share of jobs like it that the request is to hold for (0.9); default: the site's
  --on-oom WHAT         requeue (default) or fail when it runs out of GPU memory
  --slot TIME           run in slots of 2h, 90m, ...: it saves before each one's end, lets others run
                        and goes on from its checkpoint; off: not even by the site's default
  --dry-run             print the sbatch command and submit nothing
  --explain             show where the memory goes
  --json                one JSON object on standard output

The same can stand in job.sh as lines like: #GPUMEM model=summary.txt batch-size=128
(mem=12G for --gpu-mem), in variables like GPUMEM_BATCH_SIZE, and as defaults in the
[job] table of ~/.config/gpumem.toml. Without any of them gpusbatch is sbatch, except
that a job for one GPU is measured, and shares a GPU by what its earlier runs took.
"""


USAGE_INTERACTIVE = """\
usage: gpu{program} [options] [command [arguments]]

Runs {program} with as much of a GPU as the work needs: --model, --gpu-mem, --trace (of the
command) and the other options of gpusbatch stand before the command (gpusbatch --help).
Everything else goes to {program} ({program} --help). Out of GPU memory ends the work:
Slurm cannot requeue what is interactive.
"""


class Switches(NamedTuple):
    """What to do with the decision, by _SWITCHES."""

    dry_run: bool
    explain: bool
    json: bool


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point of `gpusbatch`."""
    if argv is None:
        run_program(lambda: _gpusbatch(sys.argv[1:]))
    return run_command(lambda: _gpusbatch(argv))


def main_srun() -> NoReturn:
    """Entry point of `gpusrun`."""
    run_program(lambda: _interactive(sys.argv[1:], SRUN))


def main_salloc() -> NoReturn:
    """Entry point of `gpusalloc`."""
    run_program(lambda: _interactive(sys.argv[1:], SALLOC))


def _gpusbatch(argv: List[str]) -> int:
    line = read_command_line(argv, sbatch_table(OUR_OPTIONS), ask_more=installed_options)
    if any(option.name == "help" for option in line.options):
        print(USAGE, end="")
        return 0
    if any(option.name == "version" for option in line.options):
        _say_version("gpusbatch")
    _refuse_typos(line)
    given = _own_options(line)
    script = _script(line, needed=bool(given))
    return _go(RawInput(line, OwnOptions(given), script, installed_options))


def _interactive(argv: List[str], program: str) -> int:
    """srun or salloc: our options stand before the command, and everything behind it is the command's."""
    table = srun_table(OUR_OPTIONS) if program == SRUN else salloc_table(OUR_OPTIONS)
    line = read_command_line(argv, table)
    if line.script_at is not None:
        own = read_command_line(argv[: line.script_at], table)
        command = tuple(argv[line.script_at + 1 :])
        line = own._replace(
            script=line.script, script_args=command, script_at=line.script_at, argv=tuple(argv)
        )
    if any(option.name == "help" for option in line.options):
        print(USAGE_INTERACTIVE.format(program=program), end="")
        return 0
    if any(option.name == "version" for option in line.options):
        _say_version(f"gpu{program}")
    raw = RawInput(line, OwnOptions(_own_options(line)), None, program=program)
    if program == SRUN and os.environ.get("SLURM_JOB_ID"):
        from slurm_gpumem.submission.sbatch_call import unchanged_call

        if raw.own.values:
            job = os.environ["SLURM_JOB_ID"]
            say(f"inside job {job} srun starts a step, which gets what the job has: our options do nothing")
        return become_sbatch(unchanged_call(raw))
    return _go(raw)


def _say_version(command: str) -> None:
    """Ours; Slurm's command, which answers for itself, comes next."""
    from slurm_gpumem import __version__

    print(f"{command} {__version__}", flush=True)


def _go(raw: RawInput) -> int:
    """Decide and hand over."""
    given = dict(raw.own.values)
    switches = Switches(*(given.pop(name, None) is not None for name in _SWITCHES))
    if switches.json and raw.program != SBATCH and not switches.dry_run:
        raise UsageError(f"--json prints what was submitted; with {raw.program} it needs --dry-run")
    asked = read_submission(raw._replace(own=OwnOptions(given)))
    if asked.settings.model is not None:
        asked = with_named_model(asked)
    for name in ("explain", "json"):
        nothing = asked.goes_unchanged == NOTHING_ASKED or (asked.learns and name == "explain")
        if nothing and getattr(switches, name):
            raise UsageError(f"--{name} has nothing to show: add --trace, --model FILE or --gpu-mem 12G")
    # Before anything else can fail: a warning is often the reason.
    _say_all(f"warning: {warning}" for warning in asked.warnings)
    if asked.trace:
        after = _traced(asked, switches)
        if after.deferred is not None:
            return _submit_behind(after, switches)
        asked = after.asked
    if asked.goes_unchanged == NOTHING_ASKED:
        from slurm_gpumem.submission.sbatch_call import unchanged_call

        return _hand_over(unchanged_call(asked.raw), switches)
    return _submit(asked, switches)


def _traced(asked: Submission, switches: Switches) -> AfterTrace:
    """Trace the script first; what is asked then has a model."""
    from slurm_gpumem.report.script_trace import shown_on, trace_lines
    from slurm_gpumem.submission.job_trace.before_submission import with_trace
    from slurm_gpumem.terminal.progress import StatusLine

    try:
        with StatusLine() as line:
            after = with_trace(asked, shown_on(line))
    except KeyboardInterrupt:
        say("interrupted while it was traced: nothing was submitted")
        raise
    trace = after.asked.traced
    if trace is not None and switches.explain:
        shard_mib = asked.config.sharing.shard_mib
        lines = trace_lines(trace.run.name, trace.summary, trace.traced, trace.estimate, shard_mib)
        print("\n".join(lines), file=sys.stderr)
    _say_all(f"note: {note}" for note in after.notes)
    return after


def _submit_behind(after: AfterTrace, switches: Switches) -> int:
    """Submit a trace job and, behind it, the job itself, which asks for a whole GPU until it is traced."""
    from slurm_gpumem.slurm.state.controller import Controller
    from slurm_gpumem.submission.job_trace.trace_job import behind, tell_real_job
    from slurm_gpumem.submission.sbatch_call import build_call

    deferred, plan = after.deferred, after.plan
    assert deferred is not None
    assert plan is not None
    if switches.json:
        raise UsageError("--json has nothing to show yet: this site traces in a job (trace.where)")
    planned = build_call(plan)
    if switches.dry_run:
        say("a trace job goes first; then the job itself, for a whole GPU until the trace has changed that")
        return _hand_over(planned.call, switches)
    output = run_sbatch(deferred.call.parsable(), keep_stderr=False)
    if output.job_id is None:
        return output.code or 1
    fails = "cancelled" if deferred.stop else "run on a whole GPU"
    say(f"job {output.job_id} traces the script; the job itself waits for it and is {fails} if that fails")
    trace_job, controller = output.job_id, Controller()
    call = behind(planned, plan.asked, trace_job, stop=deferred.stop)
    return submit_and_tell(call, lambda number: tell_real_job(controller, trace_job, number))


def _submit(asked: Submission, switches: Switches) -> int:
    """Decide, tell the user, hand over to sbatch."""
    from slurm_gpumem.report.submission import explain_submission, submission_line
    from slurm_gpumem.submission.decide import decide
    from slurm_gpumem.submission.sbatch_call import build_call

    if switches.json and asked.options.any_of("parsable"):
        raise UsageError("--json and --parsable both say what stdout is; choose one")
    plan = decide(asked)
    planned = build_call(plan)
    if not asked.options.any_of("quiet"):
        _say_all((submission_line(plan), *planned.notes))
    _say_all(f"warning: {warning}" for warning in plan.warnings)
    if switches.explain and not asked.goes_unchanged:
        print("\n".join(explain_submission(plan)), file=sys.stderr)
    return _print_json(plan, planned, switches) if switches.json else _hand_over(planned.call, switches)


def _hand_over(call: SbatchCall, switches: Switches) -> int:
    if not switches.dry_run:
        return become_sbatch(call)
    sys.stdout.buffer.write(os.fsencode(call.shell_words()) + b"\n")
    return 0


def _print_json(plan: Plan, planned: PlannedCall, switches: Switches) -> int:
    """The decision as JSON, with the job's id where one was submitted; else sbatch's exit code alone."""
    import json

    from slurm_gpumem.report.submission import submission_json
    from slurm_gpumem.submission.decision import decision_of

    answer = submission_json(decision_of(plan, planned))
    code = 0
    if not switches.dry_run:
        output = run_sbatch(planned.call.parsable(), keep_stderr=False)
        code, answer["job_id"], answer["cluster"] = output.code, output.job_id, output.cluster
    if code == 0:
        print(json.dumps(answer))
    return code


def _refuse_typos(line: CommandLine) -> None:
    """UsageError for an argument of the script that was probably meant for us: nothing would heed it."""
    if not line.script_args or line.argv[len(line.argv) - len(line.script_args) - 1] == "--":
        return
    from slurm_gpumem.text import near_names

    ours = [spec.name for spec in OUR_OPTIONS]
    for word in itertools.takewhile(lambda word: word != "--", line.script_args):
        name = word[2:].partition("=")[0] if word.startswith("--") else ""
        near = [name] if name in ours else near_names(name, ours) if name else []
        if not near:
            continue
        first = line.script_args[0]
        why = f"{first} is no option, so it would go to {line.script} with all that follows"
        what = (
            f"--{name} is an option: write it before {first}"
            if name in ours
            else f"Did you mean --{near[0]}?"
        )
        raise UsageError(f"{why}. {what}\nIf the script takes {word}, write -- before its arguments.")


def _own_options(line: CommandLine) -> Dict[str, str]:
    """Our options by the key they set; the last of several counts, as with sbatch."""
    given: Dict[str, str] = {}
    for option in line.options:
        if not option.ours:
            continue
        takes_value = option.name in _ABOUT_THE_JOB
        if takes_value and (option.value is None or not option.value):
            raise UsageError(f"--{option.name} needs a value")
        if not takes_value and option.value is not None:
            raise UsageError(f"--{option.name} takes no value (not {option.value!r})")
        key = "mem" if option.name == "gpu-mem" else option.name
        value = option.value or "yes"
        if key == "input" and key in given:
            from slurm_gpumem.summaries.input_shape import SEVERAL

            value = f"{given[key]}{SEVERAL}{value}"
        given[key] = value
    if given.pop(_NO_TRACE, None):
        given["trace"] = "no"
    return given


def _script(line: CommandLine, *, needed: bool) -> Optional[BatchScript]:
    """The job's script; None with --wrap, and where sbatch will complain about it itself."""
    names = {option.name for option in line.options}
    if "wrap" in names or names & {"usage", "version"}:
        return None
    if line.script is None:
        if line.missing_value:
            return None
        _refuse_script_as_value(line)
        return BatchScript("standard input", None, sys.stdin.buffer.read())
    try:
        return read_script(line.script)
    except ScriptError:
        if needed:
            raise
        return None


def _refuse_script_as_value(line: CommandLine) -> None:
    """UsageError where one of our options took the job script as its value: sbatch would wait for stdin."""
    for option in line.options:
        if option.ours and option.value and os.path.isfile(option.value):
            try:
                is_script = read_script(option.value).data.startswith(b"#!")
            except ScriptError:
                continue
            if is_script:
                raise UsageError(
                    f"--{option.name} {option.value}: this is a job script, and none is left to submit.\n"
                    f"Give the option its value: gpusbatch --{option.name} VALUE {option.value}"
                )


def _say_all(lines: Iterable[str]) -> None:
    for text in lines:
        say(text)


STANDARD_INPUT = "-"


def with_named_model(asked: Submission) -> Submission:
    """What is asked, with the summary of a model that is no file; files are read later, and quickly."""
    model = asked.settings.model
    if model is None or asked.raw.summary is not None or "\n" in model or _is_summary_file(model):
        return asked
    if model == STANDARD_INPUT:
        from slurm_gpumem.cli.options import named_summary

        if asked.script is not None and not asked.script.path:
            raise UsageError("--model - and the job script cannot both come from standard input; name a file")
        return asked._replace(raw=asked.raw._replace(summary=named_summary(model)))
    from slurm_gpumem.tracing.model.request import is_code

    return _with_trace(asked, model) if is_code(model) else asked


def _is_summary_file(model: str) -> bool:
    return os.path.isfile(model) and not model.endswith(".py")


def _with_trace(asked: Submission, model: str) -> Submission:
    """Trace the code as `gpumem estimate` does; its further options are those of `gpumem summarize`."""
    import argparse

    from slurm_gpumem.cli.target_options import add_target_options, traced_subject

    parser = argparse.ArgumentParser()
    add_target_options(parser)
    try:
        traced = traced_subject(model, parser.parse_args([]), asked.settings)
    except GpumemError as error:
        raise TargetError(
            f"{error}\nTo say more of the model's code: gpumem summarize {model} ... -o summary.json, "
            "then --model summary.json"
        ) from None
    assert traced is not None
    return asked._replace(
        raw=asked.raw._replace(summary=traced.summary),
        settings=asked.settings.without("input"),
        warnings=(*asked.warnings, *traced.notes),
    )
