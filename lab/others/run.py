"""Ask every estimator about the same measured jobs, on this machine's CPU, and write down what each says.

    python -m lab.others.run --out rows.jsonl [--tool NAME] [--match TEXT] [--xmem DIR]

Each answer is made in a forked child with a time limit and a memory limit; what the file has already is not
made again. It needs torch, torchvision, timm, transformers and accelerate, best in the versions with which
the jobs were measured (lab/data/ground-truth/about.json). xMem is asked where a checkout of its repository
is named. `lab.others.score` prints the table.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import platform
import resource
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import torch

from lab.children import run_each
from lab.command import exit_code, require
from lab.ground_truth import TOOLS as TEXTS
from lab.ground_truth import MeasuredRun
from lab.networks.build import import_sources
from lab.others.jobs import chosen_jobs
from lab.others.tools import TOOLS
from lab.score.trace_rows import entry_of
from slurm_gpumem.errors import UsageError
from slurm_gpumem.estimators.registry import run as estimated
from slurm_gpumem.summaries.reader import read_summary

LIMIT_SECONDS, LIMIT_BYTES = 600, 10 << 30
"""Seconds of a core, and of the clock ten times as many: others may use the machine."""
TEXT = "text"
"""Ours, of a text; its answer is in the score, its seconds are here."""
XMEM, XMEM_HAS = "xmem", "perf_estimator/estimator.py"
Row = Dict[str, Any]
Ask = Callable[[MeasuredRun, str], Row]
"""Of a job and its fullest text."""


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m lab.others.run", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="rows are added to it")
    parser.add_argument(
        "--tool", action="append", choices=(TEXT, *TOOLS, XMEM), help="only this (repeatable)"
    )
    parser.add_argument("--match", default="", metavar="TEXT", help="only jobs with this in their key")
    parser.add_argument("--xmem", type=Path, metavar="DIR", help="a checkout of Stone-ResearchLife/xMem")
    options = parser.parse_args(argv)
    return exit_code(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    require("accelerate", "timm", "torchvision", "transformers")
    tools = asked_tools(options.tool or [], options.xmem)
    truth = chosen_jobs()
    runs = [run for run in truth.runs if options.match in run.key]
    rows = read_rows(options.out)
    done = {(row.get("key"), row["tool"]) for row in rows}
    versions = import_sources([entry_of(run.row) for run in runs])
    gc.collect()
    gc.freeze()
    about = {"tool": "about", "versions": versions, "machine": platform.machine()}
    if [row for row in rows if row["tool"] == "about"][-1:] != [about]:
        _add(options.out, about)  # of the rows that follow
    for run in runs:
        texts = truth.texts[run.summary]
        text = next(texts[name] for name in TEXTS if name in texts)
        for tool, ask in tools.items():
            if (run.key, tool) not in done:
                row = {"key": run.key, "tool": tool, **_answer(partial(_timed, partial(ask, run, text)))}
                print(f"{run.key} {tool}: {row.get('error') or row['seconds']}", flush=True)
                _add(options.out, row)
    return 0


def asked_tools(names: Sequence[str], xmem: Optional[Path]) -> Dict[str, Ask]:
    """The estimators with these names, all by default; UsageError where xMem cannot be asked."""
    if (XMEM in names or xmem is not None) and not (xmem and (xmem / XMEM_HAS).is_file()):
        raise UsageError(f"--xmem: name a checkout of its repository, with {XMEM_HAS} in it")
    found: Dict[str, Ask] = {TEXT: _text}
    for name, tool in TOOLS.items():
        found[name] = partial(_code, tool)
    if xmem is not None:
        from lab.others.xmem import xmem as ask

        found[XMEM] = partial(_code, partial(ask, checkout=xmem.resolve()))
    return {name: ask for name, ask in found.items() if not names or name in names}


def _code(tool: Callable[[Row], Row], run: MeasuredRun, text: str) -> Row:
    return tool(dict(run.row))


def _text(run: MeasuredRun, text: str) -> Row:
    estimated("corrected", read_summary(text.rstrip("\n") + "\n"), run.job, run.gpu)
    return {}


def _timed(work: Callable[[], Row]) -> Row:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # weights without a sense make tiny numbers, with which CPUs are slow
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_SECONDS, LIMIT_SECONDS))
    started, cpu = time.monotonic(), _cpu_seconds()
    answer = work()
    seconds, cpu = time.monotonic() - started, _cpu_seconds() - cpu
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {**answer, "seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), "rss_mib": most}


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _answer(work: Callable[[], Row]) -> Row:
    (ended,) = run_each([("", work)], 1, 10 * LIMIT_SECONDS)
    return ended.answer if ended.answer is not None else {"error": ended.error[-200:]}


def read_rows(path: Path) -> List[Row]:
    """The rows of a file that may not be there yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _add(path: Path, row: Mapping[str, Any]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    sys.exit(main())
