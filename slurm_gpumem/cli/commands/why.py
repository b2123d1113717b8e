"""`gpumem why`: the peak of a traced model explained: over time, by tensor, and what would lower it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import List

from slurm_gpumem.cli.options.options import whole
from slurm_gpumem.cli.options.parser import Parser
from slurm_gpumem.cli.options.screen_options import add_units
from slurm_gpumem.cli.options.target_options import TARGET_HELP, add_target_options, read_subject
from slurm_gpumem.config.load import load_config
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.explain.advice import peak_reasons
from slurm_gpumem.named_files import check_target, save
from slurm_gpumem.report.why.text import SCHEMA, why_json, why_lines
from slurm_gpumem.submission.default_gpu import choose_gpu
from slurm_gpumem.terminal.chart import terminal_style
from slurm_gpumem.terminal.say import say
from slurm_gpumem.units import sizes_in

TENSORS = 10


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    with sizes_in(args.units):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    if args.svg:
        # Before the work: tracing takes its time.
        check_target(args.svg, "peak.svg")
    config = load_config()
    chosen = choose_gpu(args.gpu or (config.job["gpu"].value if "gpu" in config.job else None), config)
    (gpu,) = chosen.gpus
    subject = read_subject(args.subject, args, config)
    if subject.summary.trace is None:
        raise UsageError(
            f"{args.subject}: only layers, no trace: what lives when is not known.\n"
            "Trace the model's code: gpumem why train.py:build_model --input 3,224,224 --batch-size 128,\n"
            "or see where the memory goes with: gpumem estimate --explain"
        )
    reasons = peak_reasons(subject.summary, subject.job, gpu)
    if args.svg:
        from slurm_gpumem.report.why.svg import why_svg

        save(Path(args.svg), why_svg(reasons))
    if args.json:
        print(json.dumps(why_json(reasons, subject.notes)))
        return 0
    print("\n".join(why_lines(reasons, terminal_style(), args.tensors)))
    if args.svg:
        print(f"written: {args.svg}")
    for text in dict.fromkeys((*chosen.notes, *subject.notes, *reasons.estimate.warnings)):
        say(f"note: {text}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpumem why",
        description="Live memory over a training step, the largest tensors at its peak with their layers,\n"
        "and what would lower it, each computed by replaying the changed step.",
        epilog="examples:\n"
        "  gpumem why summary.json\n"
        "  gpumem why train.py:build_model --input 3,224,224 --batch-size 128 --svg peak.svg",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "subject", metavar="SUMMARY|TARGET", help=f"a summary of gpumem summarize, or code: {TARGET_HELP}"
    )
    parser.add_argument("--gpu", metavar="TYPE", help="GPU type (default: the cluster's)")
    parser.add_argument(
        "--tensors", type=whole, default=TENSORS, metavar="N", help="number of tensors to list (default: 10)"
    )
    parser.add_argument("--svg", metavar="FILE", help="the timeline as a picture")
    parser.add_argument("--json", action="store_true", help=f"machine-readable, schema {SCHEMA}")
    add_target_options(parser)
    add_units(parser)
    return parser
