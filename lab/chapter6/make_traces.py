"""Make the two traces that chapter 6 is simulated on: jobs of our own with the published statistics.

    python -m lab.chapter6.make_traces [--out FOLDER]

Every job is a training run of lab/data/ground-truth: its memory, its activity alone on an H200, and what
each estimator said of it without having seen its model. How many there are of which kind, on how many
GPUs, how much memory and how many minutes they take follows what the dissertation publishes (section 6.3.2
and table 6.2):

    kind    60 tasks  90 tasks  memory of      minutes  on two GPUs
    light       9        58     0.5 to 2.5 GB   3 to 38     none      (CIFAR-100; MNIST among the 60)
    medium     41        24     4 to 25 GB     35 to 50     none      (CNNs on ImageNet)
    large      10         8     9 to 28 GB     15 to 76     3 and 6   (transformers)

Minutes are drawn evenly on a logarithmic scale: most of the published light tasks are short. Arrivals have
the published mean distance and are as irregular (exponential distances).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from math import exp, log
from pathlib import Path
from random import Random
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from lab.command import exit_code
from lab.ground_truth import load_ground_truth
from lab.places import GROUND_TRUTH, SIMULATION, shown
from lab.score.accuracy import score, score_stored
from lab.score.predictions import load_predictions
from lab.utilization_runs import load_solo
from slurm_gpumem.simulation.trace_file import write_trace
from slurm_gpumem.simulation.types import SimJob
from slurm_gpumem.utilization.interference import JobLoad

SEED = 24
CNN = ("cnn", "segmentation", "detection", "unet", "super-resolution", "autoencoder", "synthetic-cnn")
TEXT = ("causal-lm", "text-encoder", "seq2seq", "masked-lm", "vision-transformer", "synthetic-transformer")
ESTIMATORS = {
    "corrected": "text", "trace": "trace", "horus": "horus", "faketensor": "faketensor",
    "gpumemnet": "gpumemnet",
}  # fmt: skip
"""Columns of a trace by name of the registry."""
GIVES_UP_MIB = 1_000_000
"""More than any GPU has: the authors' FakeTensor knows no transformers, and such a task got an idle GPU."""
STARTUP_MIB = 600
STARTUP_S = (20.0, 90.0)
"""From its start to its first full step: imports, data, the first batches."""


class Kind(NamedTuple):
    """Jobs of one kind."""

    families: Tuple[str, ...]
    memory_mib: Tuple[int, int]
    minutes: Tuple[float, float]


class Mix(NamedTuple):
    """One trace: how many jobs of each kind, how many of the large ones on two GPUs, seconds between
    arrivals."""

    counts: Mapping[str, int]
    on_two_gpus: int
    between_s: float


KINDS: Mapping[str, Kind] = {
    "light": Kind(CNN, (512, 2560), (3.3, 38.3)),
    "medium": Kind(CNN, (4096, 25_600), (35.0, 50.0)),
    "large": Kind(TEXT, (9216, 28_672), (15.0, 76.0)),
}
MIXES: Mapping[int, Mix] = {
    60: Mix({"light": 9, "medium": 41, "large": 10}, 3, 152.0),
    90: Mix({"light": 58, "medium": 24, "large": 8}, 6, 140.6),
}


class Measured(NamedTuple):
    """A run that may become a job."""

    key: str
    family: str
    mib: int
    load: JobLoad
    estimates: Mapping[str, int]


def measured_jobs() -> List[Measured]:
    """Runs with memory, activity and an answer of every estimator."""
    truth = load_ground_truth()
    solo = {run.key: run for run in load_solo([GROUND_TRUTH]) if not run.key.endswith("+mps=True")}
    chosen = replace(truth, runs=tuple(run for run in truth.runs if run.key in solo))
    memory: Dict[str, int] = {}
    estimates: Dict[str, Dict[str, int]] = {}
    scores, _ = score(chosen, list(ESTIMATORS))
    for found in scores:
        memory[found.run.key] = found.real_mib
        ours = found.estimator in ("corrected", "trace")
        mib = found.request_mib if ours else found.peak_mib
        if found.estimator == "faketensor" and solo[found.run.key].family in TEXT:
            mib = GIVES_UP_MIB
        estimates.setdefault(found.run.key, {})[ESTIMATORS[found.estimator]] = max(1, mib)
    for found in score_stored(chosen, load_predictions()["gpumemnet-refit-transformer"]):
        estimates[found.run.key]["gpumemnet-refit"] = found.request_mib
    jobs = []
    for key, answers in estimates.items():
        run = solo[key]
        values = run.values
        if len(answers) == len(ESTIMATORS) + 1:
            shares = [round(values[name], 4) for name in ("sm_active", "sm_occupancy", "dram_active")]
            load = JobLoad(shares[0], shares[1], shares[2], round(values["step_seconds"], 5))
            jobs.append(Measured(key, run.family, memory[key], load, answers))
    return sorted(jobs)


def make_trace(candidates: Sequence[Measured], mix: Mix, rng: Random) -> List[SimJob]:
    """One trace, its jobs in random order."""
    picked: List[Tuple[Measured, float, int]] = []
    for name, count in mix.counts.items():
        kind = KINDS[name]
        low, high = kind.memory_mib
        able = [one for one in candidates if one.family in kind.families and low <= one.mib <= high]
        for number in range(count):
            shortest, longest = kind.minutes
            minutes = exp(rng.uniform(log(shortest), log(longest)))
            gpus = 2 if name == "large" and number < mix.on_two_gpus else 1
            picked.append((rng.choice(able), minutes, gpus))
    rng.shuffle(picked)
    jobs: List[SimJob] = []
    arrival = 0.0
    for number, (one, minutes, gpus) in enumerate(picked):
        jobs.append(
            SimJob(
                number, round(arrival), round(minutes * 60), gpus, one.mib, one.load, min(STARTUP_MIB,
                one.mib), round(rng.uniform(*STARTUP_S)), user="one", name=one.key, estimates=one.estimates,
            )
        )  # fmt: skip
        arrival += rng.expovariate(1 / mix.between_s)
    return jobs


def main(argv: Optional[List[str]] = None) -> int:
    """Write both traces."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=SIMULATION, help=f"folder ({shown(SIMULATION)})")
    return exit_code(lambda: _make(parser.parse_args(argv)))


def _make(options: Any) -> int:
    candidates = measured_jobs()
    options.out.mkdir(parents=True, exist_ok=True)
    for count, mix in MIXES.items():
        jobs = make_trace(candidates, mix, Random(SEED + count))
        path = options.out / f"{count}-tasks.csv"
        write_trace(path, jobs, [f"{count} jobs by python -m lab.chapter6.make_traces"])
        hours = sum(job.work * job.gpus for job in jobs) / 3600
        runs = len({job.name for job in jobs})
        print(f"{path.name}: {len(jobs)} jobs of {runs} runs, {hours:.1f} GPU hours")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
