"""Measure the GPU memory of many training runs; rows are appended as they come, done ones are skipped.

python -m lab.collect.memory PLAN.toml --out DIR [--limit-seconds N] [--shard 1/2]
                                          [--skip ROWS]
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Set, TextIO

import torch

from lab.children import Children, Ended
from lab.collect.build import import_sources
from lab.collect.measure import measure
from lab.collect.sample import Job, load_jobs
from lab.collect.scheduler import Scheduler
from lab.command import exit_code
from lab.device import UsedMemory, describe_device
from slurm_gpumem.errors import UsageError

PROGRESS_SECONDS = 5.0


def main(argv: Optional[List[str]] = None) -> int:
    """Run the configuration's jobs until all are done or the time is over."""
    return exit_code(lambda: _collect(_parser().parse_args(argv)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.collect.memory", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-seconds", type=float, default=1e9)
    parser.add_argument("--shard", default="1/1", help="I/N: the I-th of N parts, dealt out in order")
    parser.add_argument(
        "--skip", type=Path, action="append", default=[], help="rows of earlier runs (.jsonl or .jsonl.gz)"
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="run again what failed otherwise than by lack of memory"
    )
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--jobs", type=int, default=14, help="children at once")
    parser.add_argument(
        "--shared-mib", type=float, default=108_000, help="expected memory that may run at once"
    )
    parser.add_argument("--device-mib", type=float, default=130_000, help="memory of the GPU to stay under")
    parser.add_argument("--job-seconds", type=float, default=75)
    parser.add_argument("--max-jobs", type=int, default=0)
    parser.add_argument(
        "--tiny", action="store_true", help="one step at the smallest batch (a check, not a measurement)"
    )
    return parser


def _command(options: argparse.Namespace) -> str:
    """The command for the data card: the configuration and what was set, without folders of this machine."""
    words = [options.config.name]
    for name, value in vars(options).items():
        if name not in ("config", "out", "skip") and value != _parser().get_default(name):
            words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return " ".join(words)


def _collect(options: argparse.Namespace) -> int:
    started = time.monotonic()
    quiet_libraries()
    jobs = _shard(load_jobs(options.config), options.shard)
    options.out.mkdir(parents=True, exist_ok=True)
    rows_path = options.out / f"rows-{options.config.stem}-{options.shard.replace('/', 'of')}.jsonl"
    done = done_keys([*options.skip, rows_path], options.retry_failed)
    jobs = [job for job in jobs if job.key not in done]
    jobs = jobs[: options.max_jobs] if options.max_jobs else jobs
    if options.tiny:
        jobs = _tiny(jobs)
    versions = import_sources([job.entry for job in jobs])
    if torch.cuda.is_initialized():
        raise UsageError("a library initialised CUDA while it was imported; forked children could not use it")
    about = describe_device(options.device, versions)
    about.update(
        {
            "run": f"{options.config.stem}-{about['when']}",
            "command": _command(options),
            "jobs": len(jobs),
        }
    )
    stamp = about["when"].replace(":", "")
    (options.out / f"about-{rows_path.stem}-{stamp}.json").write_text(json.dumps(about, indent=1) + "\n")
    print(f"{len(jobs)} jobs to run, {len(done)} done before; {json.dumps(about)}", flush=True)
    # Children inherit the libraries; what is frozen is never copied by their garbage collector.
    gc.collect()
    gc.freeze()
    end_last_line(rows_path)
    with open(rows_path, "a") as file:
        collector = Collector(options, jobs, file, about["run"], started)
        collector.run()
    collector.print_table()
    return 0


class Collector:
    """The loop that starts children, takes their rows and writes them."""

    def __init__(
        self, options: argparse.Namespace, jobs: List[Job], file: TextIO, run: str, started: float
    ) -> None:
        self._options, self._file, self._run, self._started = options, file, run, started
        self._scheduler = Scheduler.of(jobs, options.jobs, options.shared_mib, options.device_mib)
        self._children = Children()
        self._rows: List[Dict[str, Any]] = []
        self._spoiled: Dict[str, Dict[str, Any]] = {}
        self._total = len(jobs)
        self._shown = 0.0

    def run(self) -> None:
        """Until nothing is left, or the time is over and what ran has ended."""
        used = UsedMemory(self._options.device)
        try:
            while self._step(used):
                pass
        except KeyboardInterrupt:
            print("interrupted: what was measured is kept", flush=True)
        finally:
            for ended in self._children.kill_all():
                print(f"stopped {ended.tag.key} after {ended.seconds:.0f} s", flush=True)
            for row in self._spoiled.values():
                self._write(row)
            used.close()

    def _step(self, used: UsedMemory) -> bool:
        elapsed = time.monotonic() - self._started
        limit = self._options.limit_seconds
        reserve = min(40.0, 12.0 * len(self._scheduler.alone)) if elapsed < limit else 0.0
        if elapsed < limit - reserve:
            while (job := self._scheduler.take(used.mib)) is not None:
                self._start(job)
        if elapsed < limit and (not self._scheduler.pending or elapsed >= limit - reserve):
            job = self._scheduler.take_alone()
            if job is not None:
                self._start(job, alone=True)
        for ended in self._children.wait(0.05 if self._scheduler.pending else 0.5):
            self._take(ended)
        self._progress(used.mib)
        left = bool(self._scheduler.pending or self._scheduler.alone)
        over = elapsed > limit
        return (bool(len(self._children)) and elapsed < limit + 20) or (left and not over)

    def _start(self, job: Job, alone: bool = False) -> None:
        device = self._options.device
        # A large network on a slow CPU needs its time; on a GPU a minute means that it hangs.
        self._children.start(_Tagged(job, alone), lambda: measure(job, device), self._options.job_seconds)

    def _take(self, ended: Ended) -> None:
        tagged: _Tagged = ended.tag
        job, alone = tagged.job, tagged.alone
        self._scheduler.ended(job)
        row = {**describe_job(job), **(ended.answer or {"error": ended.error[-300:]}), "run": self._run}
        disturbed = row.get("oom") or row.get("alloc_retries") or _lacked_memory(str(row.get("error", "")))
        if disturbed and not alone:
            # Perhaps only its neighbours were in the way: again, with the GPU to itself.
            self._scheduler.alone.append(job)
            self._spoiled[job.key] = {**row, "spoiled": True}
            return
        self._spoiled.pop(job.key, None)
        self._write({**row, "alone": True} if alone else row)

    def _write(self, row: Dict[str, Any]) -> None:
        self._file.write(json.dumps(row, separators=(",", ":")) + "\n")
        self._file.flush()
        self._rows.append(row)

    def _progress(self, used_mib: float) -> None:
        now = time.monotonic()
        if now - self._shown < PROGRESS_SECONDS:
            return
        self._shown = now
        elapsed = now - self._started
        errors = sum(1 for row in self._rows if "error" in row)
        print(
            f"{elapsed:6.0f} s  {len(self._rows):5d} of {self._total} done  {errors} errors  "
            f"{len(self._children)} running  {self._scheduler.expected_mib / 1024:5.1f} GiB expected  "
            f"{used_mib / 1024:5.1f} GiB used  {len(self._rows) / max(elapsed, 1):.2f} rows/s  "
            f"{len(self._scheduler.alone)} to run alone",
            flush=True,
        )

    def print_table(self) -> None:
        """Rows by family, and the commonest errors."""
        families: Dict[str, List[Dict[str, Any]]] = {}
        for row in self._rows:
            families.setdefault(row["family"], []).append(row)
        print(f"{'family':24} {'rows':>5} {'good':>5} {'models':>6}  process MiB: least, median, most")
        for family, rows in sorted(families.items()):
            sizes = sorted((r.get("process_bytes") or 0) >> 20 for r in rows if "error" not in r)
            spread = f"{sizes[0]} {sizes[len(sizes) // 2]} {sizes[-1]}" if sizes else "-"
            print(
                f"{family:24} {len(rows):5d} {len(sizes):5d} {len({r['model'] for r in rows}):6d}  {spread}"
            )
        counted = Counter(str(row["error"])[-150:] for row in self._rows if "error" in row)
        for error, count in counted.most_common(25):
            names = [row["model"] for row in self._rows if str(row.get("error", ""))[-150:] == error]
            print(f"{count:4d} x {error}  ({', '.join(names[:3])})")


class _Tagged:
    """A job and whether it has the GPU to itself."""

    def __init__(self, job: Job, alone: bool) -> None:
        self.job, self.alone = job, alone

    @property
    def key(self) -> str:
        return self.job.key


def describe_job(job: Job) -> Dict[str, Any]:
    """What a row says about the job itself."""
    return {
        "key": job.key,
        "summary": job.summary_key,
        **job.entry.as_row(),
        "size": job.size,
        "batch": job.batch,
        "optimizer": job.optimizer,
        "precision": job.precision,
        "toggles": dict(job.toggles),
        "expected_mib": round(job.expected_mib),
    }


def _lacked_memory(error: str) -> bool:
    """Libraries say it in their own ways: cuBLAS and cuDNN have a status of that name."""
    return any(text in error.lower() for text in ("out of memory", "alloc_failed"))


def _shard(jobs: List[Job], text: str) -> List[Job]:
    try:
        index, count = (int(part) for part in text.split("/"))
    except ValueError:
        raise UsageError(f"--shard {text}: give I/N, such as 1/2") from None
    if not 1 <= index <= count:
        raise UsageError(f"--shard {text}: the first number runs from 1 to {count}")
    return jobs[index - 1 :: count]


def _tiny(jobs: Iterable[Job]) -> List[Job]:
    from dataclasses import replace

    return [
        replace(job, batch=job.entry.min_batch, steps=1, precision="fp32", expected_mib=1000.0)
        for job in jobs
    ]


def done_keys(paths: Iterable[Path], retry_failed: bool) -> Set[str]:
    """The runs that these files hold; a row that neighbours spoiled does not count."""
    keys: Set[str] = set()
    for path in paths:
        if not path.exists():
            continue
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
            for line in file:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue  # the last line of a run that was killed while it wrote
                failed = "error" in row and not row.get("oom")
                if not row.get("spoiled") and not (failed and retry_failed):
                    keys.add(row["key"])
    return keys


def end_last_line(path: Path) -> None:
    """A run that was killed while it wrote must not have the next run's first row glued to its last."""
    if path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size:
        with open(path, "a") as file:
            file.write("\n")


def quiet_libraries() -> None:
    """One thread each, no downloads, no CUDA in this process."""
    # The parent must not initialise CUDA, or its children could not: ask the driver's library instead.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(1)


if __name__ == "__main__":
    sys.exit(main())
