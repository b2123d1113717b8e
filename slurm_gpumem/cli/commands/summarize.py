"""`gpumem summarize`: trace a model's code without a GPU and write a summary for the cluster."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

from slurm_gpumem.cli.options import own_options
from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.cli.target_options import TARGET_HELP, add_code_options, trace, trace_request
from slurm_gpumem.config.load import load_config
from slurm_gpumem.errors import UsageError
from slurm_gpumem.named_files import check_target, save
from slurm_gpumem.report.estimate import describe_model
from slurm_gpumem.submission.job.settings import job_settings
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.terminal.say import say
from slurm_gpumem.tracing.script.run import TracedScript

SCHEMA = "gpumem-summarize/1"


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    if args.json and args.output in (None, "-"):
        raise UsageError(
            "--json describes the summary on standard output; write the summary to a file: -o summary.json"
        )
    settings = job_settings(load_config(), (), os.environ, own_options(args))
    request = trace_request(args.target, args, settings)
    output = _checked_output(args.output)
    traced = trace(request, args, again=True)
    # Parsed like any other file: the child ran untrusted code, so its output is checked.
    summary = read_summary(traced.summary.decode(errors="replace"))
    if output is None:
        sys.stdout.write(traced.summary.decode())
    else:
        save(output, traced.summary)
    if args.json:
        print(json.dumps(_as_json(summary, traced, output)))
    elif output is not None:
        print(_line(summary, traced, output))
    for note in traced.notes:
        say(f"note: {note}")
    for warning in summary.warnings:
        say(f"warning: {warning}")
    return 0


def _checked_output(text: Optional[str]) -> Optional[Path]:
    """Where the summary goes; a place that cannot be written is known before the trace takes its time."""
    if text is None or text == "-":
        if text is None and sys.stdout.isatty():
            raise UsageError("where to? Give a file: -o summary.json (or -o - for standard output)")
        return None
    return check_target(text, "summary.json")


def _line(summary: ModelSummary, traced: TracedScript, output: Path) -> str:
    trace = summary.trace
    events = f", {len(trace.events):,} events of {_steps(summary)} steps" if trace else ""
    return (
        f"{output}: {describe_model(summary)}, batch {summary.batch}{events}; "
        f"{len(traced.summary) / 1024:,.0f} KiB in {traced.seconds:.1f} s"
        + (f"\nloss: {trace.job.loss}" if trace and trace.job.optimizer else "")
    )


def _steps(summary: ModelSummary) -> int:
    return max((phase.step for phase in summary.trace.phases), default=0) if summary.trace else 0


def _as_json(summary: ModelSummary, traced: TracedScript, output: Optional[Path]) -> Dict[str, Any]:
    return {
        "schema": SCHEMA,
        "output": str(output) if output else None,
        "model": summary.name,
        "params": summary.total_params,
        "batch_size": summary.batch,
        "bytes": len(traced.summary),
        "notes": list(traced.notes),
        "seconds": round(traced.seconds, 2),
        **{name: traced.facts[name] for name in ("way", "built_on", "loss")},
    }


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpumem summarize",
        description="Trace a model's training steps without a GPU and without data, and write a summary\n"
        "that gpusbatch --model, gpumem estimate, fit and why read.",
        epilog="examples:\n"
        "  gpumem summarize train.py:build_model --input 3,224,224 --batch-size 128 -o summary.json\n"
        "  gpumem summarize timm:resnet50 --batch-size 64 --precision amp-bf16 -o resnet50.json\n"
        "  gpumem summarize hf:gpt2-medium --input 1024 --batch-size 8 --optimizer adamw -o gpt2.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    parser.add_argument("-o", "--output", metavar="FILE", help="the summary's file; - for standard output")
    parser.add_argument(
        "--json", action="store_true", help=f"what was done as JSON, schema {SCHEMA} (needs -o)"
    )
    add_code_options(parser)
    return parser
