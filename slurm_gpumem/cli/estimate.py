"""`gpumem estimate`: how much GPU memory a training job will need, for people or as JSON."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from typing import List, Optional, Sequence, Tuple, Union

from slurm_gpumem.cli.options import (
    COVERAGE_HELP,
    add_environment_options,
    add_ranks,
    named_summary,
    own_options,
    positive,
)
from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.cli.screen_options import add_units
from slurm_gpumem.cli.target_options import (
    TARGET_HELP,
    add_code_options,
    add_generate_option,
    traced_subject,
)
from slurm_gpumem.config.load import load_config
from slurm_gpumem.config.schema import JOB_KEYS, JOB_SWITCHES
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.resolve import resolve_job
from slurm_gpumem.estimators.types import (
    INPUT_DTYPES,
    LOSSES,
    OPTIMIZERS,
    PRECISIONS,
    Estimate,
    Gpu,
    TrainingJob,
)
from slurm_gpumem.estimators.whatif import Alternatives, alternatives
from slurm_gpumem.report.estimate import (
    SCHEMA,
    activity_line,
    comparison_lines,
    estimate_json,
    explain_lines,
    fit_line,
    result_line,
    warnings_of,
)
from slurm_gpumem.slurm.directives import MEMORY_LINE, Directive, read_directives
from slurm_gpumem.slurm.script import BatchScript
from slurm_gpumem.submission.activity import activity_of
from slurm_gpumem.submission.default_gpu import choose_gpu
from slurm_gpumem.submission.job_variables import job_environment
from slurm_gpumem.submission.settings import JobSettings, job_settings
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.terminal.progress import StatusLine
from slurm_gpumem.terminal.say import say
from slurm_gpumem.units import sizes_in
from slurm_gpumem.utilization.predict import estimate_with_utilization

ALL = "all"


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    with sizes_in(args.units):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    _check(args)
    compare = args.strategy == ALL
    if compare:
        args.strategy = None
    config = load_config()
    script, directives = _script(args)
    settings = job_settings(config, directives, os.environ, own_options(args), script=args.write)
    settings = settings.under(job_environment(os.environ, script))
    shard_mib = args.shard_mib or config.sharing.shard_mib
    summary, job, notes = _subject(args, settings)
    estimator = settings.text("estimator") or "auto"
    registry.refuse_guess(summary, estimator)
    if args.directive:
        _check_line(summary, config.text.unknown)
        _directive(summary, job, estimator, script, settings.coverage or config.sharing.coverage)
        for warning in (*config.warnings, *settings.remarks(), *summary.warnings):
            say(f"warning: {warning}")
        return 0
    chosen_gpu = choose_gpu(settings.gpu, config, shard_mib)
    (gpu,) = chosen_gpu.gpus
    if compare:
        return _compare_strategies(summary, job, gpu, (*notes, *chosen_gpu.notes))
    names = registry.names_for(summary) if estimator == ALL else [estimator]
    coverage = settings.coverage or config.sharing.coverage
    estimates = [estimate_with_utilization(name, summary, job, gpu, coverage) for name in names]
    chosen = estimates[0]
    other = Alternatives()
    if args.explain:
        other = alternatives(chosen, gpu, registry.same_way(chosen, summary, gpu), shard_mib)
    if args.json:
        print(json.dumps(estimate_json(summary, gpu, estimates, other, shard_mib)))
        _notes(chosen_gpu.notes)
        return 0
    lines: List[str] = []
    if args.explain:
        lines += explain_lines(summary, chosen, gpu, other, shard_mib)
        site = config.sharing.slowdown_in([""])
        activity = activity_of(chosen.utilization, settings.max_slowdown, site, config.sharing)
        lines += activity_line(activity)
    if len(estimates) > 1:
        lines += comparison_lines(estimates, shard_mib)
    elif not args.explain:
        lines.append(result_line(summary, chosen, shard_mib))
    lines += fit_line(chosen, gpu)
    print("\n".join(lines))
    _notes((*notes, *chosen_gpu.notes))
    for warning in (*config.warnings, *settings.remarks(), *warnings_of(summary, chosen)):
        say(f"warning: {warning}")
    return 0


def _compare_strategies(summary: ModelSummary, job: TrainingJob, gpu: Gpu, notes: Sequence[str]) -> int:
    """Print what each strategy needs on one GPU; a strategy that cannot divide the model says so."""
    from slurm_gpumem.estimators.ranks.strategy import strategy_names
    from slurm_gpumem.report.strategies import strategy_lines

    if job.gpus == 1:
        raise UsageError("--strategy all compares ways to use several GPUs: add --gpus 4")
    if summary.trace is None:
        raise UsageError("--strategy all needs a trace of the model: gpumem trace, gpumem summarize")
    found: List[Tuple[str, Union[Estimate, str]]] = []
    for name in strategy_names():
        try:
            found.append((name, registry.run("auto", summary, replace(job, strategy=name), gpu)))
        except UsageError as error:
            found.append((name, str(error).split("\n")[0]))
    print("\n".join(strategy_lines(summary, job, gpu, found)))
    _notes(notes)
    return 0


def _notes(notes: Sequence[str]) -> None:
    for note in notes:
        say(f"note: {note}")


def _subject(
    args: argparse.Namespace, settings: JobSettings
) -> Tuple[ModelSummary, TrainingJob, Tuple[str, ...]]:
    """The summary of a file or of standard input, or of code that is traced; and the job."""
    if args.generate is not None:
        from slurm_gpumem.cli.generate_option import generated_subject

        found = generated_subject(args.summary, args, settings)
        return found.summary, found.job, found.notes
    traced = traced_subject(args.summary, args, settings)
    if traced is not None:
        job = replace(traced.job, gpus=args.gpus or 1, strategy=args.strategy or "")
        return traced.summary, job, traced.notes
    return resolve_job(
        named_summary(args.summary),
        settings.stated_training(),
        presets=settings.presets(),
        input=settings.text("input"),
        gpus=args.gpus,
    )


def _script(args: argparse.Namespace) -> Tuple[Optional[BatchScript], Sequence[Directive]]:
    """The script that --write names, and what it says of the job."""
    if args.write is None:
        return None, ()
    from slurm_gpumem.submission.script_line import open_script

    script = open_script(args.write)
    directives = read_directives(script, (*JOB_KEYS, MEMORY_LINE), JOB_SWITCHES)
    for warning in directives.warnings:
        say(f"warning: {warning}")
    return script, [one for one in directives.found if one.key not in (MEMORY_LINE, "model", "mem")]


def _check_line(summary: ModelSummary, rule: str) -> None:
    """A line would let such a job share where the site does not want it to: slurmctld sees only the line."""
    unseen = registry.unseen_code(summary)
    if rule != "widen" and unseen is not None and unseen.is_much:
        raise UsageError(f"{unseen.message}. This site makes no memory line from such a text (text.unknown)")


def _directive(
    summary: ModelSummary,
    job: TrainingJob,
    estimator: str,
    script: Optional[BatchScript],
    coverage: Optional[float],
) -> None:
    """Make the memory line and print it, or write it into the script."""
    if job.gpus > 1:
        raise UsageError(
            f"--directive makes a line for a part of one GPU, and the job has {job.gpus}; leave --gpus out"
        )
    from slurm_gpumem.submission.script_line import line_for, with_line, write_script

    with StatusLine() as status:
        line = line_for(
            summary, job, estimator, coverage, lambda n: status(f"{n - n % 10} batch sizes estimated")
        )
    if script is None:
        print(line.directive())
        return
    changed = with_line(script, line)
    if changed.data == script.data:
        say(f"{script.name} has this memory line already")
        return
    write_script(changed)
    first, last = line.knots[0].batch, line.knots[-1].batch
    say(f"{script.name}: memory line for batches of {first} to {last} written; sbatch {script.name} will do")


def _check(args: argparse.Namespace) -> None:
    """Options that do not go together."""
    if args.write and not args.directive:
        raise UsageError("--write says where the line of --directive goes; add --directive")
    if args.directive and (args.json or args.explain):
        raise UsageError("--directive prints one line for a script; leave --json and --explain out")
    if args.strategy == ALL and (args.json or args.explain):
        raise UsageError("--strategy all prints a table; name one strategy for --json and --explain")
    if args.directive and args.estimator == ALL:
        raise UsageError("--directive needs one estimator, not all")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpumem estimate",
        description=__doc__,
        epilog="Defaults of the options also come from gpumem.toml's [job] and from GPUMEM_* variables.",
    )
    parser.add_argument(
        "summary",
        metavar="SUMMARY|TARGET",
        help=f"file with the text of a model summary, - for standard input, or code: {TARGET_HELP}",
    )
    job = parser.add_argument_group("the job")
    job.add_argument("--batch-size", metavar="N", help="samples per GPU (default: the summary's)")
    job.add_argument("--optimizer", metavar="NAME", help=f"{', '.join(OPTIMIZERS)} (default: adam)")
    job.add_argument("--precision", metavar="NAME", help=f"{', '.join(PRECISIONS)} (default: fp32)")
    add_ranks(job)
    job.add_argument("--grad-accumulation", metavar="N", help="batches per optimizer step (default: 1)")
    job.add_argument("--checkpointing", action="store_true", help="activation checkpointing is on")
    job.add_argument("--channels-last", action="store_true", help="model and input are channels_last")
    job.add_argument("--loss", metavar="NAME", help=f"{', '.join(LOSSES)} (default: {LOSSES[0]})")
    job.add_argument("--input-dtype", metavar="NAME", help=f"{', '.join(INPUT_DTYPES)} (default: auto)")
    add_environment_options(job)
    job.add_argument("--max-slowdown", metavar="X", help="how much longer a step may take beside others")
    job.add_argument("--coverage", metavar="X", help=COVERAGE_HELP)
    parser.add_argument("--gpu", metavar="TYPE", help="GPU type (default: the cluster's)")
    names = ", ".join([*registry.estimator_names(), *registry.FROM_RUNS])
    parser.add_argument("--estimator", metavar="NAME", help=f"{names}; all: side by side (default: auto)")
    parser.add_argument(
        "--shard-mib", type=positive, metavar="MIB", help="MiB per shard (default: the site's)"
    )
    parser.add_argument(
        "--explain", action="store_true", help="where every megabyte goes, and what would help"
    )
    parser.add_argument(
        "--directive",
        action="store_true",
        help="print the #GPUMEM line that lets plain sbatch share a GPU, for 1/4 to 4 times this batch",
    )
    parser.add_argument("--write", metavar="JOB.SH", help="with --directive: put the line into this script")
    parser.add_argument("--json", action="store_true", help=f"machine-readable, schema {SCHEMA}")
    add_code_options(parser)
    add_generate_option(parser)
    add_units(parser)
    return parser
