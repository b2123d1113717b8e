"""`gpumem trace -- COMMAND`: run an unmodified training command without a GPU, and note its allocations."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from slurm_gpumem.cli.options import positive, seconds
from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.config.load import Config, load_config
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.training_job import training_job
from slurm_gpumem.estimators.types import Estimate
from slurm_gpumem.named_files import check_target, save
from slurm_gpumem.report.script_trace import rank_notes, shown_on, trace_lines
from slurm_gpumem.submission.default_gpu import choose_gpu
from slurm_gpumem.submission.job.job_variables import job_environment
from slurm_gpumem.submission.job.settings import OwnOptions, job_settings
from slurm_gpumem.submission.job_trace.batch_script import facts_of
from slurm_gpumem.submission.job_trace.stubs import install_pythons
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.types import ModelSummary
from slurm_gpumem.terminal.progress import StatusLine
from slurm_gpumem.terminal.say import say
from slurm_gpumem.tracing.script.run import AS_FREE, Limits, TracedScript, trace_command
from slurm_gpumem.units import parse_mib

SCHEMA = "gpumem-trace/1"


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    own, command = _split(argv)
    parser = _parser()
    args, rest = parser.parse_known_args(own)
    if rest and (command or rest[0].startswith("-")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if not command:
        raise UsageError("which command? Write it behind --: gpumem trace -- python train.py --batch-size 64")
    output = None if args.output is None else check_target(args.output, "summary.json")
    config = load_config()
    chosen = choose_gpu(args.gpu or (config.job["gpu"].value if "gpu" in config.job else None), config)
    (gpu,) = chosen.gpus
    limits = Limits(
        seconds=args.time_limit,
        onward_s=args.after_first_steps,
        memory_mib=parse_mib(args.memory_limit) if args.memory_limit else None,
        at_once=config.trace.at_once or AS_FREE,
    )
    with StatusLine() as line, tempfile.TemporaryDirectory(prefix="gpumem-command-") as folder:
        traced = trace_command(
            command,
            limits,
            gpu=facts_of(gpu, args.gpus),
            # A shell script may set PYTHONPATH again, by which its Python is traced.
            environment=install_pythons(Path(folder), dict(os.environ)),
            progress=shown_on(line),
            left=folder,
        )
    # Parsed like any other file: the process ran untrusted code, so its output is checked.
    summary = read_summary(traced.summary.decode(errors="replace"))
    # Settings of a file, like a batch size, are no part of what was traced; the environment is.
    variables = job_settings(Config(), (), {}, OwnOptions({})).under(job_environment(os.environ))
    estimate = registry.run("auto", summary, training_job(summary, variables.stated_training()), gpu)
    if output is not None:
        save(output, traced.summary)
    if args.json:
        print(json.dumps(_as_json(command, summary, traced, estimate, output)))
    else:
        print(
            "\n".join(trace_lines(shlex.join(command), summary, traced, estimate, config.sharing.shard_mib))
        )
        if output is not None:
            print(f"written: {output}")
    for text in dict.fromkeys(
        (*chosen.notes, *rank_notes(summary, traced), *traced.notes, *estimate.warnings)
    ):
        say(f"note: {text}")
    return 0


def _split(argv: List[str]) -> Tuple[List[str], List[str]]:
    """Our options, and the command behind "--"."""
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def _as_json(
    command: List[str],
    summary: ModelSummary,
    traced: TracedScript,
    estimate: Estimate,
    output: Optional[Path],
) -> Dict[str, Any]:
    return {
        "schema": SCHEMA,
        "command": command,
        "output": None if output is None else str(output),
        "model": summary.name,
        "params": summary.total_params,
        "batch_size": summary.batch,
        "peak_mib": estimate.peak_mib,
        "request_mib": estimate.request_mib,
        "parts": dict(estimate.parts),
        "ranks": estimate.job.gpus,
        "gpu": estimate.gpu,
        "unfinished": (summary.trace.unfinished if summary.trace else "") or None,
        "seconds": round(traced.seconds, 1),
        "facts": traced.facts,
        "changed": list(traced.changed),
        "private": traced.private,
        "notes": list(traced.notes),
        "warnings": list(estimate.warnings),
    }


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gpumem trace",
        usage="gpumem trace [options] -- COMMAND ...",
        description="Run a training command as it is, without a GPU: data is read for real, what goes to\n"
        '"cuda" becomes shapes. Steps and rounds that are known are left out, so that it comes to its end\n'
        "in time; none of your files is changed, and there is no network.",
        epilog="examples:\n"
        "  gpumem trace -- python train.py --batch-size 64\n"
        "  gpumem trace -o summary.json --gpu a100 -- torchrun --nproc-per-node=4 train.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the summary, for gpusbatch --model")
    parser.add_argument("--gpu", metavar="TYPE", help="the GPU it would run on (default: the cluster's)")
    parser.add_argument(
        "--gpus", type=positive, default=1, metavar="N", help="GPUs that the command sees (default: 1)"
    )
    parser.add_argument(
        "--time-limit", type=seconds, default=120.0, metavar="S", help="seconds in all (default: 120)"
    )
    parser.add_argument(
        "--after-first-steps",
        type=seconds,
        metavar="S",
        help="seconds from the first steps to the script's end (default: 60, or half of a longer limit)",
    )
    parser.add_argument("--memory-limit", metavar="SIZE", help="host memory of all its processes, like 16G")
    parser.add_argument("--json", action="store_true", help=f"machine-readable, schema {SCHEMA}")
    return parser
