"""Measure how training jobs that share a GPU slow each other down.

    python -m lab.collect.interfere CONFIG.toml --out DIR [--limit-seconds N]

The jobs of a pool are built once and stay on the GPU, each in a process of its own. Each trains alone for a
moment, then drawn sets of 2 to 6 of them train at the same time, under MPS or in turns (time slices), as the
pool says; `users` gives each job the id of a user to run as (needs root). One line a set: steps per second of
each job, its speed against its own alone in this pool, whose job it is, the GPU's counters meanwhile. The
solo readings are lines of their own; with the jobs' memory they are rows of the data set (rows-CONFIG.jsonl).
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, TextIO

from lab.collect.activity import Watcher
from lab.collect.build import import_sources
from lab.collect.memory import describe_job, end_last_line, quiet_libraries
from lab.collect.sample import Job, pool_jobs
from lab.collect.servers import Environments, servers
from lab.collect.trainer import steps_between, trainer
from lab.collect.workers import Worker, end_all
from lab.command import exit_code
from lab.device import describe_device
from slurm_gpumem.errors import UsageError
from slurm_gpumem.toml_file import load_toml

RAMP_SECONDS = 0.3


def main(argv: Optional[List[str]] = None) -> int:
    """Run the configuration's pools until all are done or the time is over."""
    parser = argparse.ArgumentParser(prog="python -m lab.collect.interfere", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-seconds", type=float, default=1e9)
    parser.add_argument("--build-seconds", type=float, default=60)
    return exit_code(lambda: _interfere(parser.parse_args(argv)))


def _interfere(options: argparse.Namespace) -> int:
    started = time.monotonic()
    quiet_libraries()
    config = load_toml(options.config)
    pools = [(pool, pool_jobs(pool)) for pool in config["pool"]]
    about = describe_device("cuda", import_sources([job.entry for _, jobs in pools for job in jobs]))
    if "gpu" not in about:
        raise UsageError(f"no GPU to measure on: {about.get('error', 'none found')}")
    about.update({"run": f"{options.config.stem}-{about['when']}", "command": options.config.name})
    options.out.mkdir(parents=True, exist_ok=True)
    stamp = about["when"].replace(":", "")
    (options.out / f"about-{options.config.stem}-{stamp}.json").write_text(json.dumps(about, indent=1) + "\n")
    gc.collect()
    gc.freeze()
    watcher = Watcher()
    path = options.out / f"{options.config.stem}.jsonl"
    end_last_line(path)
    rows_path = options.out / f"rows-{options.config.stem}.jsonl"
    end_last_line(rows_path)
    with open(path, "a") as file, open(rows_path, "a") as rows:
        for number, (pool, jobs) in enumerate(pools):
            left = options.limit_seconds - (time.monotonic() - started)
            share = left / (len(pools) - number)
            measurer = Pool(f"{about['run']}/{number}", pool, jobs, watcher, file, rows)
            written = measurer.run(time.monotonic() + share, config, options.build_seconds)
            print(
                f"{time.monotonic() - started:6.0f} s  pool {number} ({pool['mode']}): {written} sets",
                flush=True,
            )
    return 0


def draw_sets(jobs: Sequence[str], sizes: Mapping[str, float], seed: int) -> Iterator[List[str]]:
    """Different sets without end (until none is left), sizes as weighted."""
    rng = random.Random(seed)
    seen = set()
    for _ in range(10_000):
        size = int(rng.choices(list(sizes), list(sizes.values()))[0])
        chosen = sorted(rng.sample(list(jobs), min(size, len(jobs))))
        if tuple(chosen) not in seen:
            seen.add(tuple(chosen))
            yield chosen


class Pool:
    """The jobs of one pool on the GPU and what is measured of them."""

    def __init__(
        self,
        name: str,
        pool: Mapping[str, Any],
        jobs: List[Job],
        watcher: Watcher,
        file: TextIO,
        rows: TextIO,
    ) -> None:
        self._name, self._pool, self._jobs, self._watcher = name, pool, jobs, watcher
        self._file, self._rows = file, rows
        self._workers: Dict[str, Worker] = {}
        self._users = dict(zip([job.key for job in jobs], pool.get("users", [0] * len(jobs))))

    def run(self, until: float, config: Mapping[str, Any], build_seconds: float) -> int:
        """Build, measure each alone, then sets until the time or the pool's number of sets is over."""
        with servers(self._pool["mode"], list(self._users.values())) as environments:
            try:
                rows = self._build(environments, build_seconds)
                windows = [config["window_seconds"]] * self._pool.get("solo_windows", 1)
                solo = {key: self._together([key], windows) for key in list(self._workers)}
                solo = {key: reading for key, reading in solo.items() if reading.get("steps_per_s")}
                for key, reading in solo.items():
                    self._write({"kind": "solo", "job": key, **_single(reading)})
                    self._write_row({**rows[key], "utilization": _single(reading)})
                return self._sets(until, config, solo)
            finally:
                end_all(list(self._workers.values()))

    def _build(self, environments: Environments, build_seconds: float) -> Dict[str, Dict[str, Any]]:
        self._workers = {
            job.key: Worker(job, trainer(job, "cuda"), environments[uid], uid)
            for job, uid in zip(self._jobs, self._users.values())
        }
        by = time.monotonic() + build_seconds
        rows = {key: worker.hear(by) for key, worker in self._workers.items()}
        for job in self._jobs:
            if "error" in rows[job.key]:
                print(f"{job.key}: {rows[job.key]['error']}", flush=True)
                self._workers.pop(job.key).end()
        return {job.key: {**describe_job(job), **rows[job.key]} for job in self._jobs}

    def _sets(self, until: float, config: Mapping[str, Any], solo: Mapping[str, Dict[str, Any]]) -> int:
        sizes, seed = config["sizes"], config["seed"] + len(self._name)
        written = 0
        for chosen in draw_sets(list(solo), sizes, seed):
            if time.monotonic() > until or written >= self._pool.get("sets", 10_000):
                break
            reading = self._together(chosen, [config["window_seconds"]])
            rates = reading.get("steps_per_s", [])
            if len(rates) != len(chosen):
                continue
            speed = [round(rate / solo[key]["steps_per_s"][0], 4) for key, rate in zip(chosen, rates)]
            users = [self._users[key] for key in chosen]
            self._write({"kind": "set", "jobs": chosen, "users": users, **reading, "speed": speed})
            written += 1
        return written

    def _together(self, chosen: Sequence[str], windows: Sequence[float]) -> Dict[str, Any]:
        """Let them train at the same time; rates in the window in which all did."""
        moments = [time.monotonic() + RAMP_SECONDS]
        for seconds in windows:
            moments.append(moments[-1] + seconds)
        last = moments[-1]
        for key in chosen:
            self._workers[key].say({"until": last + 0.05})
        self._watcher.watch(moments)
        read = self._watcher.readings()
        answers = [self._workers[key].hear(last + 20) for key in chosen]
        start, end = read["at"][0], read["at"][-1]
        rates = [steps_between(answer.get("ends", []), start, end).get("steps_per_s") for answer in answers]
        if None in rates:
            print(
                f"{', '.join(chosen)}: too few steps or an error: {[a.get('error') for a in answers]}",
                flush=True,
            )
            return {}
        repeats = {"repeats": read["windows"]} if len(windows) > 1 else {}
        return {"steps_per_s": rates, **read["whole"], "seconds": round(end - start, 3), **repeats}

    def _write_row(self, row: Dict[str, Any]) -> None:
        run = self._name.rpartition("/")[0]
        self._rows.write(json.dumps({**row, "run": run}, separators=(",", ":")) + "\n")
        self._rows.flush()

    def _write(self, line: Dict[str, Any]) -> None:
        line = {**line, "pool": self._name, "mode": self._pool["mode"]}
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._file.flush()


def _single(reading: Mapping[str, Any]) -> Dict[str, Any]:
    rate = reading["steps_per_s"][0]
    return {**reading, "steps_per_s": rate, "step_seconds": round(1 / rate, 6)}


if __name__ == "__main__":
    sys.exit(main())
