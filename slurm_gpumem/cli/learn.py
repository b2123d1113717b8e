"""`gpumem learn`: learn from the site's measured jobs how much more memory they take than was estimated."""

from __future__ import annotations

import argparse
import json
import os
from typing import Dict, List

from slurm_gpumem.cli.parser import Parser
from slurm_gpumem.config.accounting import load_accounting_config
from slurm_gpumem.errors import NotLearnedError, UsageError
from slurm_gpumem.estimators.learned import GpuConstant, learned_path, load_constants
from slurm_gpumem.site.learn import (
    LEAST_MODELS,
    LEAST_RUNS,
    LEAST_USERS,
    by_kind,
    constants_from,
    shortage,
    write_constants,
)
from slurm_gpumem.site.learn_runs import LearnableRuns, read_runs
from slurm_gpumem.terminal.progress import StatusLine
from slurm_gpumem.terminal.say import say

SCHEMA = "gpumem-learn/3"


def main(argv: List[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_args(argv)
    for folder in args.records or ():
        if not os.path.isdir(folder):
            raise UsageError(f"{folder}: is no folder; --records names one with job records")
    folders = args.records or list(load_accounting_config().folders)
    path = args.output or learned_path()
    with StatusLine() as line:
        # Every 500 records: a line for each would take longer than reading them.
        found = read_runs(folders, lambda n: line(f"{n - n % 500:,} records read"))
    now = _in_force(path)
    learned = constants_from(found.runs)
    new = {**now, **learned} != now
    if args.json:
        written = new and not args.dry_run
        gpus = {kind: one._asdict() for kind, one in learned.items()}
        print(json.dumps({"schema": SCHEMA, "path": path, "written": written, "gpus": gpus}))
    else:
        print("\n".join([*_read_lines(found, folders), *_learned_lines(learned, now)]))
    if not learned:
        raise NotLearnedError(
            f"{_too_few(found)}.\nA type of GPU needs at least {LEAST_RUNS} jobs of {LEAST_MODELS} models "
            f"by {LEAST_USERS} users. Nothing was changed."
        )
    if not new:
        raise NotLearnedError("these jobs say what is in force already. Nothing was changed.")
    if args.dry_run:
        say(f"--dry-run: {path} was not written")
        return 0
    kept = write_constants(path, {**now, **learned})
    say(f"{path} written" + (f"; the one before is {kept}" if kept else ""))
    say("memory lines in scripts of plain sbatch follow after gpumem setup wrote gpumem_site.lua again")
    return 0


def _in_force(path: str) -> Dict[str, GpuConstant]:
    """The constants that are used now: none where the file cannot be used, which estimates warn of."""
    try:
        return load_constants(path)
    except (OSError, ValueError):
        return {}


def _read_lines(found: LearnableRuns, folders: List[str]) -> List[str]:
    lines = [f"{found.records:,} records in {', '.join(folders)}, {len(found.runs):,} usable"]
    if found.left_out:
        reasons = sorted(found.left_out.items(), key=lambda item: -item[1])
        lines.append("left out: " + ", ".join(f"{n:,} {why}" for why, n in reasons))
    return lines


def _learned_lines(learned: Dict[str, GpuConstant], now: Dict[str, GpuConstant]) -> List[str]:
    """A line for each type of GPU."""
    return [
        f"{kind}: {constant}" + (f", {now[kind].mib:+,} MiB before" if kind in now else "")
        for kind, constant in learned.items()
    ]


def _too_few(found: LearnableRuns) -> str:
    kinds = by_kind(found.runs)
    counts = "; ".join(f"{kind}: {shortage(runs)}" for kind, runs in kinds.items())
    return f"too little to learn from ({counts or 'no usable jobs'})"


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="gpumem learn", description=__doc__)
    parser.add_argument(
        "--records",
        action="append",
        metavar="DIR",
        help="folder of job records (repeatable; default: those of [accounting] and [node] in gpumem.toml)",
    )
    parser.add_argument("--output", metavar="FILE", help=f"the file to write (default: {learned_path()})")
    parser.add_argument("--dry-run", action="store_true", help="show what would be learned and write nothing")
    parser.add_argument("--json", action="store_true", help="machine-readable, schema " + SCHEMA)
    return parser
