"""`gpumem estimate`: how much GPU memory a training job will need, for people or as JSON."""

from __future__ import annotations

import argparse
import os
from typing import List, Sequence, Tuple

from slurm_gpumem.cli.options import (
    COVERAGE_HELP,
    add_gpu,
    add_gpus,
    add_json,
    add_python,
    add_set,
    add_torch,
    help_formatter,
    named_summary,
    own_options,
)
from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.cli.target_options import (
    TARGET_HELP,
    add_generate_option,
    add_target_options,
    traced_subject,
)
from slurm_gpumem.config.load import Config, load_config
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.resolve import resolve_job
from slurm_gpumem.estimators.types import (
    LOSSES,
    Estimate,
    Gpu,
    TrainingJob,
)
from slurm_gpumem.report.estimate import comparison_lines, fit_line, result_line, warnings_of
from slurm_gpumem.submission.job.job_variables import job_environment
from slurm_gpumem.submission.job.settings import JobSettings, job_settings
from slurm_gpumem.submission.kept_estimates import estimate_once, memory_once
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.terminal.say import say

ALL = "all"


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    _check(args)
    config = load_config()
    settings = job_settings(config, (), os.environ, own_options(args))
    settings = settings.under(job_environment(os.environ))
    shard_mib = config.sharing.shard_mib
    summary, job, notes = _subject(args, settings)
    estimator = settings.text("estimator") or "auto"
    registry.refuse_guess(summary, estimator)
    gpu, gpu_notes = _gpu(settings, config, shard_mib)
    names = registry.names_for(summary) if estimator == ALL else [estimator]
    coverage = settings.coverage or config.sharing.coverage
    # One line on memory needs no utilization.
    estimated = estimate_once if args.json or args.explain or estimator == ALL else memory_once
    estimates = [estimated(name, summary, job, gpu, coverage) for name in names]
    if args.json:
        _print_json(args, summary, gpu, estimates, shard_mib)
        _notes(gpu_notes)
        return 0
    chosen = estimates[0]
    lines: List[str] = []
    if args.explain:
        lines += _explained(args, summary, gpu, chosen, shard_mib, settings, config)
    if len(estimates) > 1:
        lines += comparison_lines(estimates, shard_mib)
    elif not args.explain:
        lines.append(result_line(summary, chosen, shard_mib))
    lines += fit_line(chosen, gpu)
    print("\n".join(lines))
    _notes((*notes, *gpu_notes))
    for warning in (*config.warnings, *settings.remarks(), *warnings_of(summary, chosen)):
        say(f"warning: {warning}")
    return 0


def _gpu(settings: JobSettings, config: Config, shard_mib: int) -> Tuple[Gpu, Tuple[str, ...]]:
    """The GPU that the estimate is for, and notes on the choice."""
    if settings.gpu:
        from slurm_gpumem.estimators.gpus import find_gpu

        return find_gpu(settings.gpu).in_shards(shard_mib), ()
    from slurm_gpumem.submission.default_gpu import choose_gpu

    chosen = choose_gpu(None, config, shard_mib)
    return chosen.gpus[0], chosen.notes


def _print_json(
    args: argparse.Namespace, summary: ModelSummary, gpu: Gpu, estimates: List[Estimate], shard_mib: int
) -> None:
    import json

    from slurm_gpumem.estimators.largest import Alternatives, alternatives
    from slurm_gpumem.report.estimate_json import estimate_json

    chosen = estimates[0]
    other = Alternatives()
    if args.explain:
        other = alternatives(chosen, gpu, registry.same_way(chosen, summary, gpu), shard_mib)
    print(json.dumps(estimate_json(summary, gpu, estimates, other, shard_mib)))


def _explained(
    args: argparse.Namespace,
    summary: ModelSummary,
    gpu: Gpu,
    estimate: Estimate,
    shard_mib: int,
    settings: JobSettings,
    config: Config,
) -> List[str]:
    from slurm_gpumem.estimators.largest import alternatives
    from slurm_gpumem.report.explained import activity_line, detail_lines, explain_lines
    from slurm_gpumem.submission.share.activity import activity_of

    other = alternatives(estimate, gpu, registry.same_way(estimate, summary, gpu), shard_mib)
    site = config.sharing.slowdown_in([""])
    activity = activity_of(estimate.utilization, settings.max_slowdown, site, config.sharing)
    lines = [*explain_lines(summary, estimate, gpu, other, shard_mib), *activity_line(activity)]
    return [*lines, *detail_lines(summary, estimate, gpu, shard_mib)] if args.verbose else lines


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
        job = traced.job._replace(gpus=args.gpus or 1)
        return traced.summary, job, traced.notes
    return resolve_job(
        named_summary(args.summary),
        settings.stated_training(),
        presets=settings.presets(),
        input=settings.text("input"),
        gpus=args.gpus,
    )


def _check(args: argparse.Namespace) -> None:
    """Options that do not go together."""
    if args.verbose and not args.explain:
        raise UsageError("-v says more of what --explain shows; add --explain")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpumem estimate",
        description=__doc__,
        formatter_class=help_formatter,
        epilog="Defaults of the options also come from gpumem.toml's [job] and from GPUMEM_* variables.",
    )
    parser.add_argument(
        "summary",
        metavar="SUMMARY|TARGET",
        help=f"file with a model summary, - for standard input, or code: {TARGET_HELP}",
    )
    add_target_options(parser)
    job = parser.add_argument_group("the job")
    add_gpus(job)
    job.add_argument(
        "--strategy",
        metavar="NAME",
        help="how they divide the work: ddp (default); others are not estimated (gpumem docs several-gpus)",
    )
    job.add_argument("--channels-last", action="store_true", help="model and input are channels_last")
    job.add_argument("--loss", metavar="NAME", help=f"{', '.join(LOSSES)} (default: {LOSSES[0]})")
    add_torch(job)
    job.add_argument(
        "--max-slowdown", metavar="X", help="how many times as long a step may take while sharing"
    )
    job.add_argument("--coverage", metavar="X", help=COVERAGE_HELP)
    add_gpu(parser)
    names = ", ".join([*registry.estimator_names(), *registry.FROM_RUNS])
    parser.add_argument("--estimator", metavar="NAME", help=f"{names}; all: side by side (default: auto)")
    parser.add_argument(
        "--explain", action="store_true", help="where every megabyte goes, and what would change it"
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="with --explain: also other coverages, the predicted activity, and what was assumed",
    )
    add_json(parser)
    code = parser.add_argument_group("the model's code")
    add_set(code)
    add_python(code)
    add_generate_option(parser)
    return parser
