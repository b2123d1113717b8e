"""`gpumem summarize`: trace a model's code without a GPU and write a summary for the cluster."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from slurm_gpumem.cli.run import say
from slurm_gpumem.cli.target_options import TARGET_HELP, add_target_options, trace_code, trace_request
from slurm_gpumem.config.load import Config, load_config
from slurm_gpumem.errors import UsageError
from slurm_gpumem.files import write_atomic
from slurm_gpumem.report.estimate import describe_model
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.tracing.child.sandbox import Traced

SCHEMA = "gpumem-summarize/1"


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    if args.json and args.output in (None, "-"):
        raise UsageError(
            "--json tells about the summary; give the summary a file of its own: -o summary.json"
        )
    config = load_config()
    request = trace_request(args.target, args, job_defaults(config))
    output = _checked_output(args.output)
    traced = trace_code(request, args)
    summary = _read_back(traced)
    if output is None:
        sys.stdout.write(traced.summary.decode())
    else:
        write_whole(output, traced.summary)
    if args.json:
        print(json.dumps(_as_json(summary, traced, output)))
    elif output is not None:
        print(_line(summary, traced, output))
    tell_notes(traced)
    return 0


def job_defaults(config: Config) -> Tuple[Tuple[str, str], ...]:
    """What gpumem.toml's [job] and GPUMEM_* variables say of the job, by the options' names."""
    from slurm_gpumem.config.load import job_variables

    found = {key: default.value for key, default in config.job.items()}
    found.update({key: value for key, (value, _) in job_variables(os.environ).items()})
    wanted = ("batch-size", "optimizer", "precision", "loss")
    return tuple((key.replace("-", "_"), found[key]) for key in wanted if key in found)


def tell_notes(traced: Traced) -> None:
    """Say on stderr what was assumed or made harmless."""
    for note in traced.notes:
        say(f"note: {note}")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    try:
        write_atomic(path, data, mode=None)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def _checked_output(text: Optional[str]) -> Optional[Path]:
    """Where the summary goes; a place that cannot be written is told before the trace takes its time."""
    if text is None or text == "-":
        if text is None and sys.stdout.isatty():
            raise UsageError("where to? Give a file: -o summary.json (or -o - for standard output)")
        return None
    path = Path(text)
    if path.is_dir():
        raise UsageError(f"{text}: is a directory; name the file, like {text.rstrip('/')}/summary.json")
    if not path.parent.is_dir():
        raise UsageError(f"{text}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{text}: the folder {path.parent} cannot be written to")
    return path


def _read_back(traced: Traced) -> ModelSummary:
    """Read the answer as the cluster will: the child ran somebody's code, and is believed nothing."""
    return read_summary(traced.summary.decode(errors="replace"))


def _line(summary: ModelSummary, traced: Traced, output: Path) -> str:
    trace = summary.trace
    events = f", {len(trace.events):,} events of {_steps(summary)} steps" if trace else ""
    return (
        f"{output}: {describe_model(summary)}, batch {summary.batch}{events}; "
        f"{len(traced.summary) / 1024:,.0f} KiB in {traced.facts.get('seconds', 0):.1f} s"
    )


def _steps(summary: ModelSummary) -> int:
    return max((phase.step for phase in summary.trace.phases), default=0) if summary.trace else 0


def _as_json(summary: ModelSummary, traced: Traced, output: Optional[Path]) -> Dict[str, Any]:
    return {
        "schema": SCHEMA,
        "output": str(output) if output else None,
        "model": summary.name,
        "params": summary.total_params,
        "batch_size": summary.batch,
        "bytes": len(traced.summary),
        "notes": list(traced.notes),
        **traced.facts,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
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
    add_target_options(parser)
    return parser
