"""`gpusbatch`: sbatch that asks for just the GPU memory a job needs."""

from __future__ import annotations

import os
import sys
from typing import Dict, List, Optional, Sequence

from slurm_gpumem.cli.run import run_command, say
from slurm_gpumem.errors import UsageError
from slurm_gpumem.slurm.options import (
    NO_VALUE,
    REQUIRED,
    CommandLine,
    OptionSpec,
    options_from_help,
    read_command_line,
    sbatch_table,
)
from slurm_gpumem.slurm.script import BatchScript, ScriptError, check_script, read_script

_ABOUT_THE_JOB = (
    "model", "batch-size", "optimizer", "precision", "gpu", "estimator", "gpu-mem", "on-oom",
    "grad-accumulation", "loss", "input-dtype", "max-slowdown",
)  # fmt: skip
_SWITCHES_OF_THE_JOB = ("exclusive-gpu", "checkpointing", "channels-last", "end-line")
_SWITCHES = ("dry-run", "explain", "json")
OUR_OPTIONS = (
    *(OptionSpec(name, "", REQUIRED, True) for name in _ABOUT_THE_JOB),
    *(OptionSpec(name, "", NO_VALUE, True) for name in (*_SWITCHES_OF_THE_JOB, *_SWITCHES)),
)

USAGE = """\
usage: gpusbatch [options] job.sh [options] [--] [arguments of job.sh]

Submits job.sh with sbatch, asking for as much of a GPU as its training needs.
Everything that is not listed here goes to sbatch (sbatch --help).

  --model FILE          the model's summary (torchinfo, torchsummary, print(model), ...)
  --batch-size N        samples per step; from the summary when it says so
  --optimizer NAME      adam (default), adamw, sgd, sgd-momentum, ...
  --precision NAME      fp32 (default), tf32, amp-fp16, amp-bf16, bf16
  --grad-accumulation N, --checkpointing, --channels-last, --loss NAME, --input-dtype NAME
  --gpu TYPE            the GPU to estimate for and run on; default: those of the partition
  --estimator NAME      how to estimate; gpumem estimate --estimator all shows them
  --gpu-mem SIZE        ask for this much GPU memory (12G) instead of estimating
  --exclusive-gpu       a GPU for this job alone
  --max-slowdown X      how much longer its steps may take beside others (1.15); default: the site's
  --on-oom WHAT         requeue (default) or fail when it runs out of GPU memory
  --end-line            at its end, one line in its output on what it used
  --dry-run             print the sbatch command and submit nothing
  --explain             show where the memory goes
  --json                one JSON object on standard output

The same can stand in job.sh as lines like: #GPUMEM model=summary.txt batch-size=128
(mem=12G for --gpu-mem; gpumem estimate --directive prints one that needs no model file),
in variables like GPUMEM_BATCH_SIZE, and as defaults in the [job] table of
~/.config/gpumem.toml. Without any of them gpusbatch is sbatch.
"""


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point of `gpusbatch`."""
    args = sys.argv[1:] if argv is None else argv
    return run_command(lambda: _gpusbatch(args))


def _gpusbatch(argv: List[str]) -> int:
    table = sbatch_table(OUR_OPTIONS)
    line = read_command_line(argv, table, ask_more=_plugin_options)
    if any(option.name == "help" for option in line.options):
        print(USAGE, end="")
        return 0
    _hint_at_typo(line, argv)
    ours = _own_options(line)
    script = _script(line, needed=bool(ours))
    from slurm_gpumem.config.load import JOB_KEYS, load_config
    from slurm_gpumem.slurm.directives import MEMORY_LINE, read_directives
    from slurm_gpumem.submission.settings import DIRECTIVES, OPTIONS, job_settings

    switches = {name: ours.pop(name, None) is not None for name in _SWITCHES}
    directives = read_directives(script, (*JOB_KEYS, MEMORY_LINE)) if script else None
    found = directives.found if directives else ()
    if not (ours or found or any(os.environ.get(name) for name in ("GPUMEM_MODEL", "GPUMEM_MEM"))):
        warnings = directives.warnings if directives else ()
        return _plain(line, argv, script, switches, warnings)
    config = load_config()
    settings = job_settings(config, found, os.environ, ours, script=script.path if script else None)
    warnings = (*config.warnings, *(directives.warnings if directives else ()))
    if not (settings.model or settings.mem_mib or settings.memory_line or settings.exclusive_gpu):
        if settings.given_by(OPTIONS):
            raise UsageError(
                f"--{settings.given_by(OPTIONS)[0]} says something about a model, but there is none.\n"
                "Add --model summary.txt, or --gpu-mem 12G to ask for GPU memory by hand."
            )
        if settings.given_by(DIRECTIVES):
            warnings = (
                *warnings,
                "#GPUMEM lines without model=, memory-line= or mem= ask for nothing; going as sbatch does",
            )
        return _plain(line, argv, script, switches, warnings)
    if script is not None:
        check_script(script)
    from slurm_gpumem.cli.share_job import submit_shared

    return submit_shared(line, script, settings, config, table, switches, warnings, _plugin_options)


def _hint_at_typo(line: CommandLine, argv: Sequence[str]) -> None:
    """An option of ours with a slip in it would quietly become the script's argument: say so."""
    first = line.script_args[0] if line.script_args else ""
    if not first.startswith("--") or argv[len(argv) - len(line.script_args) - 1] == "--":
        return
    import difflib

    known = [spec.name for spec in OUR_OPTIONS]
    near = difflib.get_close_matches(first[2:].partition("=")[0], known, n=1, cutoff=0.75)
    if near:
        say(
            f"warning: {first} is no option; it goes to {line.script} as an argument. "
            f"Did you mean --{near[0]}?\nIf not, write -- before it."
        )


def _own_options(line: CommandLine) -> Dict[str, str]:
    """Our options by the key they set; the last of several counts, as with sbatch."""
    given = {}
    for option in line.options:
        if not option.ours:
            continue
        takes_value = option.name in _ABOUT_THE_JOB
        if takes_value and (option.value is None or not option.value):
            raise UsageError(f"--{option.name} needs a value")
        if not takes_value and option.value is not None:
            raise UsageError(f"--{option.name} takes no value (not {option.value!r})")
        given["mem" if option.name == "gpu-mem" else option.name] = option.value or "yes"
    return given


def _script(line: CommandLine, *, needed: bool) -> Optional[BatchScript]:
    """The job's script; None with --wrap, and where sbatch will complain about it itself."""
    names = {option.name for option in line.options}
    if "wrap" in names or names & {"usage", "version"}:
        return None
    if line.script is None:
        if line.missing_value:
            return None
        return BatchScript("standard input", None, sys.stdin.buffer.read())
    try:
        return read_script(line.script)
    except ScriptError:
        if needed:
            raise
        return None


def _plain(
    line: CommandLine,
    argv: List[str],
    script: Optional[BatchScript],
    switches: Dict[str, bool],
    warnings: Sequence[str],
) -> int:
    """Be sbatch."""
    from slurm_gpumem.submission.sbatch_call import plain_submission, run_submission, shell_words

    for name in ("explain", "json"):
        if switches[name]:
            raise UsageError(f"--{name} has nothing to show: add --model summary.txt or --gpu-mem 12G")
    for warning in warnings:
        say(f"warning: {warning}")
    submission = plain_submission(line, argv, script)
    if switches["dry-run"]:
        sys.stdout.buffer.write(os.fsencode(shell_words(submission)) + b"\n")
        return 0
    return run_submission(submission)


def _plugin_options() -> Sequence[OptionSpec]:
    """Options that this site's plugins add to sbatch (and newer versions than we know)."""
    from slurm_gpumem.errors import SlurmError
    from slurm_gpumem.slurm.client import run

    try:
        return options_from_help(run(["sbatch", "--help"]))
    except SlurmError:
        # Then the option is handed on as it stands, and sbatch judges it.
        return ()
