"""Measure how busy training jobs keep the GPU when they are alone on it; their memory as well.

    python -m lab.collect.utilize CONFIG.toml --out DIR [--limit-seconds N] [--skip ROWS]

A group of jobs is built at the same time, each in a process of its own, and measured for memory. Then
they train one after the other, nothing else running: three windows of a second each, the batch on the GPU.
Rows are appended as they come; done ones are skipped.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, TextIO

from lab.collect.activity import Watcher
from lab.collect.build import import_sources
from lab.collect.memory import describe_job, done_keys, end_last_line, quiet_libraries
from lab.collect.sample import Job, load_jobs
from lab.collect.trainer import steps_between, trainer
from lab.collect.workers import Worker, end_all
from lab.command import exit_code
from lab.device import describe_device
from slurm_gpumem.errors import UsageError

RAMP_SECONDS = 0.25
"""Clocks rise and queues fill before the first window."""


def main(argv: Optional[List[str]] = None) -> int:
    """Run the configuration's jobs until all are done or the time is over."""
    parser = argparse.ArgumentParser(prog="python -m lab.collect.utilize", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-seconds", type=float, default=1e9)
    parser.add_argument("--skip", type=Path, action="append", default=[], help="rows of earlier runs")
    parser.add_argument("--jobs", type=int, default=18, help="jobs of one group, built at the same time")
    parser.add_argument("--group-mib", type=float, default=90_000, help="expected memory of one group")
    parser.add_argument("--build-seconds", type=float, default=45, help="for the jobs of a group")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--window-seconds", type=float, default=1.0)
    parser.add_argument("--max-jobs", type=int, default=0)
    return exit_code(lambda: _utilize(parser.parse_args(argv)))


def _utilize(options: argparse.Namespace) -> int:
    started = time.monotonic()
    quiet_libraries()
    options.out.mkdir(parents=True, exist_ok=True)
    rows_path = options.out / f"rows-{options.config.stem}.jsonl"
    done = done_keys([*options.skip, rows_path], retry_failed=False)
    jobs = [job for job in load_jobs(options.config) if job.key not in done]
    jobs = jobs[: options.max_jobs] if options.max_jobs else jobs
    versions = import_sources([job.entry for job in jobs])
    about = describe_device("cuda", versions)
    if "gpu" not in about:
        raise UsageError(f"no GPU to measure on: {about.get('error', 'none found')}")
    about.update({"run": f"{options.config.stem}-{about['when']}", "command": _command(options)})
    stamp = about["when"].replace(":", "")
    (options.out / f"about-{rows_path.stem}-{stamp}.json").write_text(json.dumps(about, indent=1) + "\n")
    print(f"{len(jobs)} jobs to run, {len(done)} done before; {json.dumps(about)}", flush=True)
    gc.collect()
    gc.freeze()
    end_last_line(rows_path)
    watcher = Watcher()
    written = 0
    with open(rows_path, "a") as file:
        while jobs and time.monotonic() - started < options.limit_seconds:
            group = _take_group(jobs, options.jobs, options.group_mib)
            until = started + options.limit_seconds
            written += _measure_group(group, watcher, options, file, about["run"], until)
            print(f"{time.monotonic() - started:6.0f} s  {written} rows, {len(jobs)} jobs left", flush=True)
    return 0


def _command(options: argparse.Namespace) -> str:
    return f"{options.config.name} --windows {options.windows} --window-seconds {options.window_seconds}"


def _take_group(jobs: List[Job], most: int, mib: float) -> List[Job]:
    """The next jobs that fit on the GPU together, the first in any case; takes them off the list."""
    group = [jobs.pop(0)]
    for job in list(jobs[: 3 * most]):
        if len(group) < most and sum(j.expected_mib for j in group) + job.expected_mib <= mib:
            group.append(job)
            jobs.remove(job)
    return group


def _measure_group(
    group: List[Job],
    watcher: Watcher,
    options: argparse.Namespace,
    file: TextIO,
    run: str,
    until: float,
) -> int:
    workers = [Worker(job, trainer(job, "cuda")) for job in group]
    written = 0
    try:
        built_by = time.monotonic() + options.build_seconds
        rows = {worker.tag.key: worker.hear(built_by) for worker in workers}
        for worker in workers:
            row = {**describe_job(worker.tag), **rows[worker.tag.key], "run": run}
            if "error" not in row:
                if time.monotonic() > until:
                    break
                row["utilization"] = _alone(worker, watcher, options)
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
            file.flush()
            written += 1
    finally:
        end_all(workers)
    return written


def _alone(worker: Worker, watcher: Watcher, options: argparse.Namespace) -> Dict[str, Any]:
    begin = time.monotonic() + RAMP_SECONDS
    moments = [begin + number * options.window_seconds for number in range(options.windows + 1)]
    worker.say({"until": moments[-1]})
    watcher.watch(moments)
    read = watcher.readings()
    answer = worker.hear(moments[-1] + 20)
    if "error" in answer:
        return {"error": answer["error"]}
    ends, at = answer["ends"], read["at"]
    repeats = [
        {**window, **steps_between(ends, first, last)}
        for window, first, last in zip(read["windows"], at, at[1:])
    ]
    whole = {**read["whole"], **steps_between(ends, at[0], at[-1])}
    seconds = 1 / whole["steps_per_s"] if whole.get("steps_per_s") else None
    spread = statistics.pstdev([repeat["sm_active"] for repeat in repeats])
    return {
        **whole,
        "step_seconds": round(seconds, 6) if seconds else None,
        "seconds": round(at[-1] - at[0], 3),
        "sm_active_spread": round(spread, 3),
        "repeats": repeats,
    }


if __name__ == "__main__":
    sys.exit(main())
