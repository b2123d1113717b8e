"""`gpumem why`: the peak of a traced model explained: over time, by tensor, and what would lower it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import List

from slurm_gpumem.cli.options import add_gpu, add_json, whole
from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.cli.target_options import TARGET_HELP, add_target_options, read_subject
from slurm_gpumem.config.load import load_config
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.traced.advice import peak_reasons
from slurm_gpumem.named_files import check_target, save
from slurm_gpumem.report.why import why_json, why_lines
from slurm_gpumem.submission.default_gpu import choose_gpu
from slurm_gpumem.terminal.chart import terminal_style
from slurm_gpumem.terminal.say import say

TENSORS = 10


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    if args.snapshot:
        # Before the work: tracing takes its time.
        check_target(args.snapshot, "peak.pickle")
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
    if args.snapshot:
        from slurm_gpumem.report.why import snapshot_file

        save(Path(args.snapshot), snapshot_file(subject.summary.trace, subject.job.batch_size, gpu))
    if args.json:
        print(json.dumps(why_json(reasons, subject.notes)))
        return 0
    print("\n".join(why_lines(reasons, terminal_style(), args.tensors)))
    if args.snapshot:
        print(f"written: {args.snapshot}; https://pytorch.org/memory_viz shows it")
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
        "  gpumem why train.py:build_model --input 3,224,224 --batch-size 128 --snapshot peak.pickle",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "subject", metavar="SUMMARY|TARGET", help=f"a summary of gpumem summarize, or code: {TARGET_HELP}"
    )
    add_gpu(parser)
    parser.add_argument(
        "--tensors", type=whole, default=TENSORS, metavar="N", help="number of tensors to list (default: 10)"
    )
    parser.add_argument(
        "--snapshot", metavar="FILE", help="every allocation, for PyTorch's viewer (pytorch.org/memory_viz)"
    )
    add_json(parser)
    add_target_options(parser)
    return parser
