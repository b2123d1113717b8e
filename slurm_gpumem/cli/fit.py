"""`gpumem fit`: does the model fit this GPU, and up to which batch size? From a summary or from its code."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Tuple

from slurm_gpumem.cli.run import say
from slurm_gpumem.cli.subject import Subject, read_subject
from slurm_gpumem.cli.target_options import TARGET_HELP, add_target_options
from slurm_gpumem.config.load import load_config
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.largest import BatchCurve, largest_batch
from slurm_gpumem.estimators.types import Estimate, Gpu
from slurm_gpumem.report.fit import fit_lines
from slurm_gpumem.terminal.chart import terminal_style
from slurm_gpumem.units import ceil_div

SCHEMA = "gpumem-fit/1"
USUAL_GPUS = ("t4", "v100", "rtx4090", "a100", "a100-80gb", "h100", "h200")
"""Shown when none is named: one for each size that clusters usually have."""
_POINTS = 13


@dataclass(frozen=True)
class Fit:
    """The answer for one limit: a whole GPU, or some shards of one."""

    gpu: Gpu
    shards: Optional[int]
    """None: the whole GPU."""
    limit_mib: int
    batch: Optional[int]
    """The largest batch whose request stays within the limit; None when not even one sample's does."""
    batch_at_best: Optional[int]
    """The largest whose peak does: it fits if the estimate is right."""
    estimate: Estimate
    """At `batch`, or at one sample."""


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    config = load_config()
    names = args.gpu or ([config.job["gpu"].value] if "gpu" in config.job else [])
    gpus = [find_gpu(name) for name in names]
    shard_mib = args.shard_mib or config.sharing.shard_mib
    subject = read_subject(args.subject, args, config)
    answers = [_fit(subject, gpu, args.shards, shard_mib) for gpu in gpus or map(find_gpu, USUAL_GPUS)]
    curve = _curve(subject, answers[0]) if len(answers) == 1 else ()
    if args.json:
        print(json.dumps(_as_json(subject, answers, curve, shard_mib)))
    else:
        print("\n".join(fit_lines(subject, answers, curve, shard_mib, terminal_style())))
        for text in dict.fromkeys((*subject.notes, *answers[0].estimate.warnings)):
            say(f"note: {text}")
    return 0 if any(_is_yes(subject, answer) for answer in answers) else 1


def _is_yes(subject: Subject, answer: Fit) -> bool:
    asked = subject.job.batch_size if subject.batch_given else 1
    return answer.batch_at_best is not None and answer.batch_at_best >= asked


def _fit(subject: Subject, gpu: Gpu, shards: Optional[int], shard_mib: int) -> Fit:
    curve = BatchCurve(subject.job, lambda job: registry.run("auto", subject.summary, job, gpu))
    limit = gpu.memory_mib if shards is None else min(shards * shard_mib, gpu.memory_mib)
    start = subject.job.batch_size
    trace = subject.summary.trace
    if trace is not None and not trace.scalable:
        fixed = curve.at(trace.job.batch)
        batch = trace.job.batch if fixed.request_mib <= limit else None
        at_best = trace.job.batch if fixed.peak_mib <= limit else None
        return Fit(gpu, shards, limit, batch, at_best, fixed)
    at_best = largest_batch(curve.peak_mib, limit, start)
    batch = largest_batch(curve.request_mib, limit, at_best or start) if at_best else None
    return Fit(gpu, shards, limit, batch, at_best, curve.at(batch or 1))


def _curve(subject: Subject, answer: Fit) -> Tuple[Estimate, ...]:
    """Estimates over batch sizes, a little past the largest that fits."""
    trace = subject.summary.trace
    if trace is not None and not trace.scalable:
        return ()
    asked = subject.job.batch_size if subject.batch_given else 1
    last = max(4, round((answer.batch_at_best or 1) * 1.25), asked)
    curve = BatchCurve(subject.job, lambda job: registry.run("auto", subject.summary, job, answer.gpu))
    return tuple(estimate for _, estimate in curve.samples(1, last, _POINTS))


def _as_json(
    subject: Subject, answers: List[Fit], curve: Tuple[Estimate, ...], shard_mib: int
) -> Dict[str, Any]:
    job = asdict(subject.job)
    if not subject.batch_given:
        del job["batch_size"]
    return {
        "schema": SCHEMA,
        "model": {"name": subject.summary.name, "params": subject.summary.total_params},
        "estimator": answers[0].estimate.estimator,
        "job": job,
        "fits": [
            {
                "gpu": answer.gpu.name,
                "gpu_memory_mib": answer.gpu.memory_mib,
                "shards": answer.shards,
                "limit_mib": answer.limit_mib,
                "fits": _is_yes(subject, answer),
                "batch_size": answer.batch,
                "batch_size_at_best": answer.batch_at_best,
                "at": _figures(answer.estimate, shard_mib),
            }
            for answer in answers
        ],
        "curve": [_figures(estimate, shard_mib) for estimate in curve],
        "warnings": list(answers[0].estimate.warnings),
        "notes": list(subject.notes),
    }


def _figures(estimate: Estimate, shard_mib: int) -> Dict[str, int]:
    return {
        "batch_size": estimate.job.batch_size,
        "peak_mib": estimate.peak_mib,
        "request_mib": estimate.request_mib,
        "shards": ceil_div(estimate.request_mib, shard_mib),
    }


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpumem fit",
        description="The largest batch that fits a GPU or some shards of it, with the curve.\n"
        "Exit code 0: it fits; 1: it does not (not the batch size given, or not even one sample).",
        epilog="examples:\n"
        "  gpumem fit train.py:build_model --input 3,224,224 --gpu a100-40gb\n"
        "  gpumem fit summary.json --gpu a100-40gb --shards 10\n"
        "  gpumem fit timm:resnet50 --precision amp-bf16          (all usual GPUs)",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("subject", metavar="SUMMARY|TARGET", help=f"a summary's file, or code: {TARGET_HELP}")
    parser.add_argument(
        "--gpu", action="append", metavar="TYPE", help="GPU type (repeat; default: those that are usual)"
    )
    parser.add_argument("--shards", type=_positive, metavar="N", help="in this many shards instead of a GPU")
    parser.add_argument(
        "--shard-mib", type=_positive, metavar="MIB", help="MiB per shard (default: the site's)"
    )
    parser.add_argument("--json", action="store_true", help=f"machine-readable, schema {SCHEMA}")
    add_target_options(parser)
    return parser
