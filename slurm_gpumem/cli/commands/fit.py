"""`gpumem fit`: does the model fit this GPU, and up to which batch size? From a summary or from its code."""

from __future__ import annotations

import argparse
import json
import os
from typing import List, Optional, Sequence, Tuple

from slurm_gpumem.cli.options import (
    COVERAGE_HELP,
    add_gpus,
    add_json,
    add_torch,
    own_options,
    positive,
)
from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.cli.target_options import TARGET_HELP, add_target_options, read_subject
from slurm_gpumem.config.load import Config, load_config
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.largest import batch_limits
from slurm_gpumem.estimators.registry import refuse_guess
from slurm_gpumem.estimators.types import Gpu
from slurm_gpumem.report.fit import fit_json, fit_lines
from slurm_gpumem.submission.default_gpu import cluster_gpus
from slurm_gpumem.submission.job.settings import ANY_GPU, job_settings
from slurm_gpumem.terminal.chart import terminal_style
from slurm_gpumem.terminal.say import say
from slurm_gpumem.text import count
from slurm_gpumem.units import format_mib

USUAL_GPUS = ("t4", "v100", "rtx4090", "a100", "a100-80gb", "h100", "h200")
"""Shown when none is named and no cluster answers: one for each size that clusters usually have."""


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    config = load_config()
    shard_mib = config.sharing.shard_mib
    named = args.gpu or ([config.job["gpu"].value] if "gpu" in config.job else [])
    named = [name for name in named if name.lower() != ANY_GPU]
    gpus, notes = _large_enough(_gpus(named, config, shard_mib), args.shards, shard_mib)
    subject = read_subject(args.subject, args, config)
    if subject.job.gpus > 1 and args.shards is not None:
        raise UsageError("--shards are a part of one GPU; Slurm gives a job on several GPUs whole ones")
    refuse_guess(subject.summary, "auto")
    stated = job_settings(config, (), os.environ, own_options(args)).coverage
    coverage = stated or config.sharing.coverage
    trace = subject.summary.trace
    if trace is not None and not trace.scalable:
        one = f"this trace shows batch size {trace.job.batch} only, so no larger one was tried"
        notes = [*notes, f"{one}; trace the script with a larger batch"]
    found = batch_limits(subject.summary, subject.job, subject.asked, gpus, args.shards, shard_mib, coverage)
    if args.json:
        print(json.dumps(fit_json(found, shard_mib, (*notes, *subject.notes))))
    else:
        print("\n".join(fit_lines(found, shard_mib, terminal_style())))
        for text in dict.fromkeys((*notes, *subject.notes, *found.limits[0].estimate.warnings)):
            say(f"note: {text}")
    return 0 if any(answer.holds(subject.asked) for answer in found.limits) else 1


def _gpus(named: Sequence[str], config: Config, shard_mib: int) -> Sequence[Gpu]:
    """The GPUs named, else the cluster's, else the usual ones."""
    found = () if named else cluster_gpus(config)
    return found or [find_gpu(name).in_shards(shard_mib) for name in named or USUAL_GPUS]


def _large_enough(
    gpus: Sequence[Gpu], shards: Optional[int], shard_mib: int
) -> Tuple[Sequence[Gpu], Sequence[str]]:
    """The GPUs that have this many shards, and a note on the others; UsageError when none has."""
    enough = [gpu for gpu in gpus if shards is None or shards * shard_mib <= gpu.usable_mib]
    if not enough:
        gpu = max(gpus, key=lambda gpu: gpu.memory_mib)
        raise UsageError(
            f"--shards {shards}: one {gpu.name} has {format_mib(gpu.memory_mib)}, which is "
            f"{count(gpu.usable_mib // shard_mib, 'shard')} of {format_mib(shard_mib)}; a job runs on one GPU"
        )
    small = [gpu.name for gpu in gpus if gpu not in enough]
    return enough, [f"not shown, because they have fewer shards: {', '.join(small)}"] if small else []


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpumem fit",
        description="The largest batch that fits a GPU or some shards of it, with the curve.\n"
        "Exit code 0: it fits; 1: it does not (not the batch size given, or not even one sample).",
        epilog="examples:\n"
        "  gpumem fit train.py:build_model --input 3,224,224 --gpu a100-40gb\n"
        "  gpumem fit summary.json --gpu a100-40gb --shards 10\n"
        "  gpumem fit summary.json --gpu a100-80gb --gpus 4\n"
        "  gpumem fit timm:resnet50 --precision amp-bf16          (all usual GPUs)",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("subject", metavar="SUMMARY|TARGET", help=f"a summary's file, or code: {TARGET_HELP}")
    parser.add_argument(
        "--gpu",
        action="append",
        metavar="TYPE",
        help="GPU type (repeat; default: the cluster's)",
    )
    parser.add_argument("--shards", type=positive, metavar="N", help="in this many shards instead of a GPU")
    parser.add_argument("--coverage", metavar="X", help=COVERAGE_HELP)
    add_json(parser)
    add_torch(parser)
    add_gpus(parser)
    add_target_options(parser)
    return parser
