"""`gpumem estimate`: how much GPU memory a training job will need, for people or as JSON."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Dict, List, Tuple

from slurm_gpumem.cli.estimate_text import comparison_lines, explain_lines, fit_line, result_line
from slurm_gpumem.cli.run import say
from slurm_gpumem.errors import UsageError
from slurm_gpumem.memory import registry
from slurm_gpumem.memory.assumptions import assumptions
from slurm_gpumem.memory.gpus import DEFAULT_GPU, find_gpu
from slurm_gpumem.memory.types import (
    INPUT_DTYPES,
    LOSSES,
    OPTIMIZERS,
    PRECISIONS,
    Estimate,
    Gpu,
    TrainingJob,
)
from slurm_gpumem.memory.whatif import Alternatives, alternatives
from slurm_gpumem.model.reader import read_summary
from slurm_gpumem.model.types import ModelSummary
from slurm_gpumem.sizes import ceil_div

SCHEMA = "gpumem-estimate/1"
ALL = "all"


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    summary = read_summary(args.summary)
    if not summary.name:
        summary = replace(summary, name=Path(args.summary).stem)
    job = _job(args, summary)
    gpu = find_gpu(args.gpu)
    names = registry.estimator_names() if args.estimator == ALL else [args.estimator]
    estimates = [registry.run(name, summary, job, gpu) for name in names]
    chosen = estimates[0]
    other = Alternatives()
    if args.explain:
        other = alternatives(
            chosen, gpu, lambda job: registry.run(chosen.estimator, summary, job, gpu), args.shard_mib
        )
    if args.json:
        print(json.dumps(_as_json(args, summary, gpu, estimates, other)))
        return 0
    lines: List[str] = []
    if args.explain:
        lines += explain_lines(summary, chosen, gpu, other, args.shard_mib)
    if args.estimator == ALL:
        lines += comparison_lines(estimates, args.shard_mib)
    elif not args.explain:
        lines.append(result_line(chosen, args.shard_mib))
    lines += fit_line(chosen, gpu)
    print("\n".join(lines))
    for warning in _warnings(summary, estimates):
        say(f"warning: {warning}")
    return 0


def _job(args: argparse.Namespace, summary: ModelSummary) -> TrainingJob:
    batch = args.batch_size if args.batch_size is not None else summary.batch
    if batch is None:
        raise UsageError("the summary does not say its batch size; give one (--batch-size 128)")
    return TrainingJob(
        batch_size=batch,
        optimizer=args.optimizer,
        precision=args.precision,
        gpus=args.gpus,
        grad_accumulation=args.grad_accumulation,
        checkpointing=args.checkpointing,
        channels_last=args.channels_last,
        loss=args.loss,
        input_dtype=args.input_dtype,
    )


def _warnings(summary: ModelSummary, estimates: List[Estimate]) -> Tuple[str, ...]:
    """What the reader and the estimator warn of, each once, in order."""
    return tuple(dict.fromkeys((*summary.warnings, *(w for e in estimates[:1] for w in e.warnings))))


def _as_json(
    args: argparse.Namespace,
    summary: ModelSummary,
    gpu: Gpu,
    estimates: List[Estimate],
    other: Alternatives,
) -> Dict[str, Any]:
    chosen = estimates[0]
    result: Dict[str, Any] = {
        "schema": SCHEMA,
        **_figures(chosen, args.shard_mib),
        "gpu": chosen.gpu,
        "gpu_memory_mib": gpu.memory_mib,
        "job": asdict(chosen.job),
        "model": {
            "name": summary.name,
            "format": summary.format,
            "layers": sum(layer.leaf for layer in summary.layers),
            "params": summary.total_params,
        },
        "coverage": chosen.coverage,
        "warnings": list(_warnings(summary, estimates)),
        "assumptions": list(assumptions(summary, chosen.job, gpu, chosen)),
    }
    if args.estimator == ALL:
        result["estimators"] = [_figures(estimate, args.shard_mib) for estimate in estimates]
    if args.explain:
        result["alternatives"] = _alternatives_json(other, args.shard_mib)
    return result


def _figures(estimate: Estimate, shard_mib: int) -> Dict[str, Any]:
    return {
        "estimator": estimate.estimator,
        "peak_mib": estimate.peak_mib,
        "request_mib": estimate.request_mib,
        "floor_mib": estimate.floor_mib,
        "shards": ceil_div(estimate.request_mib, shard_mib),
        "parts": dict(estimate.parts),
    }


def _alternatives_json(other: Alternatives, shard_mib: int) -> Dict[str, Any]:
    result: Dict[str, Any] = {}
    named = {"half_batch": other.half_batch, "amp": other.amp, "checkpointing": other.checkpointing}
    for name, estimate in named.items():
        if estimate is not None:
            result[name] = {
                "batch_size": estimate.job.batch_size,
                "precision": estimate.job.precision,
                "peak_mib": estimate.peak_mib,
                "request_mib": estimate.request_mib,
                "shards": ceil_div(estimate.request_mib, shard_mib),
            }
    if other.fewer_shards is not None:
        result["fewer_shards"] = {"shards": other.fewer_shards, "batch_size": other.batch_for_fewer}
    return result


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpumem estimate", description=__doc__)
    parser.add_argument("summary", help="file with the text of a model summary")
    job = parser.add_argument_group("the job")
    job.add_argument("--batch-size", type=int, metavar="N", help="samples per GPU (default: the summary's)")
    job.add_argument("--optimizer", default="adam", metavar="NAME", help=f"{', '.join(OPTIMIZERS)} (adam)")
    job.add_argument("--precision", default="fp32", metavar="NAME", help=f"{', '.join(PRECISIONS)} (fp32)")
    job.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs of a DDP job (1)")
    job.add_argument("--grad-accumulation", type=int, default=1, metavar="N", help="batches per step (1)")
    job.add_argument("--checkpointing", action="store_true", help="activation checkpointing is on")
    job.add_argument("--channels-last", action="store_true", help="model and input are channels_last")
    job.add_argument("--loss", default=LOSSES[0], metavar="NAME", help=f"{', '.join(LOSSES)} ({LOSSES[0]})")
    job.add_argument(
        "--input-dtype", default="auto", metavar="NAME", help=f"{', '.join(INPUT_DTYPES)} (auto)"
    )
    parser.add_argument("--gpu", default=DEFAULT_GPU, metavar="TYPE", help=f"GPU type ({DEFAULT_GPU})")
    parser.add_argument(
        "--estimator",
        default="auto",
        metavar="NAME",
        help=f"{', '.join(registry.estimator_names())}, or all, side by side (auto)",
    )
    parser.add_argument(
        "--shard-mib", type=_positive, default=1024, metavar="MIB", help="MiB per shard (1024)"
    )
    parser.add_argument(
        "--explain", action="store_true", help="where every megabyte goes, and what would help"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable, schema " + SCHEMA)
    return parser
