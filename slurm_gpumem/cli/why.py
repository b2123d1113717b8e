"""`gpumem why`: the peak of a traced model explained: over time, by tensor, and what would lower it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, List, Tuple

from slurm_gpumem.cli.run import say
from slurm_gpumem.cli.subject import Subject, read_subject
from slurm_gpumem.cli.summarize import write_whole
from slurm_gpumem.cli.target_options import TARGET_HELP, add_target_options
from slurm_gpumem.config.load import load_config
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.explain.advice import Advice, advice
from slurm_gpumem.estimators.explain.timeline import Timeline, timeline
from slurm_gpumem.estimators.gpus import DEFAULT_GPU, find_gpu
from slurm_gpumem.estimators.types import Estimate, Gpu
from slurm_gpumem.report.why.text import why_lines
from slurm_gpumem.terminal.chart import terminal_style

SCHEMA = "gpumem-why/1"
TENSORS = 10
_MIB = 1 << 20
_JSON_POINTS = 400


@dataclass(frozen=True)
class Reasons:
    """Everything that is shown."""

    subject: Subject
    gpu: Gpu
    estimate: Estimate
    timeline: Timeline
    advice: Tuple[Advice, ...]


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    config = load_config()
    name = args.gpu or (config.job["gpu"].value if "gpu" in config.job else DEFAULT_GPU)
    gpu = find_gpu(name)
    subject = read_subject(args.subject, args, config)
    reasons = _reasons(subject, gpu, args.subject)
    if args.html:
        from slurm_gpumem.report.why.html import why_html

        write_whole(Path(args.html), why_html(reasons).encode())
    if args.png:
        from slurm_gpumem.report.why.png import why_png

        write_whole(Path(args.png), why_png(reasons))
    if args.json:
        print(json.dumps(_as_json(reasons)))
        return 0
    print("\n".join(why_lines(reasons, terminal_style(), args.tensors)))
    for path in (args.html, args.png):
        if path:
            print(f"written: {path}")
    for text in dict.fromkeys((*subject.notes, *reasons.estimate.warnings)):
        say(f"note: {text}")
    return 0


def _reasons(subject: Subject, gpu: Gpu, text: str) -> Reasons:
    trace = subject.summary.trace
    if trace is None:
        raise UsageError(
            f"{text}: only layers, no trace: what lives when is not known.\n"
            "Trace the model's code: gpumem why train.py:build_model --input 3,224,224 --batch-size 128,\n"
            "or see where the memory goes with: gpumem estimate --explain"
        )
    batch = subject.job.batch_size
    estimate = registry.run("auto", subject.summary, subject.job, gpu)
    line = timeline(trace, batch, gpu)
    return Reasons(subject, gpu, estimate, line, advice(subject.summary, batch, gpu, line))


def _as_json(reasons: Reasons) -> Dict[str, Any]:
    line = reasons.timeline
    every = max(1, -(-len(line.points) // _JSON_POINTS))
    # Of each stretch the highest point, so that the peak is among them.
    kept = sorted(
        {
            max(range(first, min(first + every, len(line.points))), key=lambda at: sum(line.points[at]))
            for first in range(0, len(line.points), every)
        }
        | {line.peak_point}
    )
    return {
        "schema": SCHEMA,
        "model": reasons.subject.summary.name,
        "gpu": reasons.gpu.name,
        "job": asdict(reasons.subject.job),
        "peak_mib": reasons.estimate.peak_mib,
        "request_mib": reasons.estimate.request_mib,
        "parts": dict(reasons.estimate.parts),
        "allocated_mib": round(line.peak_bytes / _MIB),
        "peak_phase": line.peak_phase,
        "step": line.step,
        "phases": [asdict(span) for span in line.spans],
        "categories": list(line.categories),
        "timeline": [
            {"event": at, "mib": [round(size / _MIB, 2) for size in line.points[at]]} for at in kept
        ],
        "tensors": [
            {**asdict(one), "mib": round(one.bytes / _MIB, 2)} for one in line.at_peak[: 10 * TENSORS]
        ],
        "advice": [asdict(one) for one in reasons.advice],
        "warnings": list(reasons.estimate.warnings),
        "notes": list(reasons.subject.notes),
    }


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpumem why",
        description="Live memory over a training step, the largest tensors at its peak with their layers,\n"
        "and what would lower it, each computed by replaying the changed step.",
        epilog="examples:\n"
        "  gpumem why summary.json\n"
        "  gpumem why train.py:build_model --input 3,224,224 --batch-size 128 --png peak.png",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "subject", metavar="SUMMARY|TARGET", help=f"a summary of gpumem summarize, or code: {TARGET_HELP}"
    )
    parser.add_argument("--gpu", metavar="TYPE", help=f"GPU type (default: {DEFAULT_GPU})")
    parser.add_argument("--tensors", type=_count, default=TENSORS, metavar="N", help="so many (default: 10)")
    parser.add_argument("--html", metavar="FILE", help="the same as a page of its own")
    parser.add_argument("--png", metavar="FILE", help="the timeline as a picture")
    parser.add_argument("--json", action="store_true", help=f"machine-readable, schema {SCHEMA}")
    add_target_options(parser)
    return parser
