"""Turn a configuration of ranges into the list of jobs to measure, the same for the same seed."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from lab.collect.entries import Entry, load_catalogue
from lab.collect.footprint import Footprint, load_footprints
from lab.collect.ranges import draw
from slurm_gpumem.errors import ConfigError
from slurm_gpumem.toml_file import load_toml

STEPS = 5
"""Enough for the peak to be stable, unless the configuration says otherwise."""
UNKNOWN = Footprint(parameters=100e6, saved=200e6, flops=10e9)
"""For a model that could not be traced: large enough to be careful with."""
MODES = ("mps", "timeslice", "per-user", "shared")
"""How the jobs of a pool share the GPU: clients of one user's MPS server, without MPS, clients of a server
for each user, clients of one server for all users."""


@dataclass(frozen=True)
class Job:
    """One training run to measure."""

    entry: Entry
    size: int
    batch: int
    optimizer: str
    precision: str
    toggles: Mapping[str, Any] = field(default_factory=dict)
    steps: int = STEPS
    expected_mib: float = 0.0
    """A guess, to share the GPU by; not a measured value."""
    expected_seconds: float = 0.0

    @property
    def key(self) -> str:
        """What makes two runs the same run; done keys are not run again."""
        toggles = "".join(f"+{k}={v}" for k, v in sorted(self.toggles.items()))
        return f"{self.entry.id}@{self.size}/b{self.batch}/{self.optimizer}/{self.precision}{toggles}"

    @property
    def summary_key(self) -> str:
        """Which summary texts belong to the run."""
        return f"{self.entry.id}@{self.size}"


@dataclass(frozen=True)
class Ranges:
    """What a configuration says about real architectures."""

    rows_per_model: int
    max_mib: float
    max_step_seconds: float
    optimizers: Mapping[str, float]
    precisions: Mapping[str, float]
    min_mib: float = 64.0
    """Activations that a batch takes at least, as far as the other limits let it."""


def load_jobs(path: Path) -> List[Job]:
    """All jobs of a configuration file, in the order in which they are to run."""
    config = load_toml(path)
    if "pool" in config:
        return [job for pool in config["pool"] for job in pool_jobs(pool)]
    try:
        jobs = _expand(config)
    except KeyError as error:
        raise ConfigError(f"{path}: lacks {error}") from None
    return [replace(job, steps=config["steps"]) for job in jobs] if "steps" in config else jobs


def pool_jobs(pool: Mapping[str, Any]) -> List[Job]:
    """The jobs that share a GPU in one pool, each given as "MODEL@SIZE/bBATCH/OPTIMIZER/PRECISION"."""
    if pool.get("mode") not in MODES:
        raise ConfigError(f"pool: mode must be one of {', '.join(MODES)}, not {pool.get('mode')!r}")
    # A client of MPS takes less memory outside the allocator: another factor, as the other toggles are.
    toggles = {} if pool["mode"] == "timeslice" else {"mps": True}
    known = {entry.id: entry for entry in load_catalogue()}
    jobs = []
    for key in pool["jobs"]:
        head, _, rest = key.partition("@")
        try:
            size, batch, optimizer, precision = rest.split("/")
            job = Job(known[head], int(size), int(batch.lstrip("b")), optimizer, precision, toggles)
        except (KeyError, ValueError):
            raise ConfigError(
                f"pool: {key!r} is not MODEL@SIZE/bBATCH/OPTIMIZER/PRECISION of the catalogue"
            ) from None
        jobs.append(job)
    return jobs


def _expand(config: Dict[str, Any]) -> List[Job]:
    rng = random.Random(config["seed"])
    real = config.get("real", {})
    ranges = Ranges(
        rows_per_model=real.get("rows_per_model", 0),
        max_mib=config["max_mib"],
        max_step_seconds=config["max_step_seconds"],
        optimizers=config["optimizers"],
        precisions=config["precisions"],
        min_mib=config.get("min_mib", 64.0),
    )
    entries = load_catalogue(real["catalogues"]) if real else []
    rounds = real_rounds(entries, load_footprints(), ranges, rng)
    synthetic = [
        _synthetic(name, index, config, rng)
        for name, count in config.get("synthetic", {}).items()
        for index in range(count)
    ]
    toggled = [
        job
        for group in config.get("toggle", [])
        for job in _toggled(group, entries or load_catalogue(), ranges)
    ]
    rng.shuffle(synthetic)
    # Real architectures lead; a run that is cut off anywhere still holds a balanced sample.
    first = rounds[0] if rounds and not config.get("mixed") else []
    rest = [job for r in rounds[1 if first else 0 :] for job in r]
    return _unique(toggled + first + _interleave(rest, synthetic))


def real_rounds(
    entries: Sequence[Entry], footprints: Mapping[str, Footprint], ranges: Ranges, rng: random.Random
) -> List[List[Job]]:
    """Rounds of one job for each entry, each round shuffled."""
    rounds = []
    for number in range(ranges.rows_per_model):
        jobs = []
        for entry in entries:
            size = entry.sizes[0] if number % 2 == 0 else rng.choice(entry.sizes)
            optimizer, precision = _pick(ranges.optimizers, rng), _pick(ranges.precisions, rng)
            print_ = footprints.get(entry.id, UNKNOWN).scaled(entry.task, size, entry.sizes[0])
            batch = _batch(entry, print_, optimizer, precision, ranges, rng)
            jobs.append(_job(entry, size, batch, optimizer, precision, print_))
        rng.shuffle(jobs)
        rounds.append(jobs)
    return rounds


def _job(entry: Entry, size: int, batch: int, optimizer: str, precision: str, print_: Footprint) -> Job:
    expected = print_.expected_mib(batch, optimizer, precision)
    seconds = print_.step_seconds(batch, precision)
    return Job(entry, size, batch, optimizer, precision, {}, STEPS, expected, seconds)


def _batch(
    entry: Entry, print_: Footprint, optimizer: str, precision: str, ranges: Ranges, rng: random.Random
) -> int:
    """Log-uniform in memory between the smallest batch and the limit, half of them powers of two."""
    fixed, one = print_.fixed_mib(optimizer, precision), print_.per_sample_mib(precision)
    low = max(entry.min_batch * one, ranges.min_mib)
    high = max(ranges.max_mib - fixed, low * 1.01)
    target = math.exp(rng.uniform(math.log(low), math.log(high)))
    by_time = ranges.max_step_seconds / max(print_.step_seconds(1, precision), 1e-12)
    batch = int(min(target / one, by_time, entry.max_batch))
    if rng.random() < 0.5 and batch > 1:
        batch = 2 ** int(math.log2(batch))
    return max(batch, entry.min_batch)


def _synthetic(name: str, index: int, config: Dict[str, Any], rng: random.Random) -> Job:
    drawn = draw(name, rng, config["synthetic_max_mib"], config["synthetic_max_step_seconds"])
    entry = Entry(
        id=f"{name}/{config.get('prefix', '')}{index:04d}-{drawn.shape}",
        source="own",
        family=f"synthetic-{name}",
        build=f"synthetic.{name}",
        task={"mlp": "table", "cnn": "image", "transformer": "tokens"}[name],
        args=drawn.args,
        task_args=drawn.task_args,
        sizes=(drawn.size,),
    )
    optimizer, precision = _pick(config["optimizers"], rng), _pick(config["synthetic_precisions"], rng)
    return _job(entry, drawn.size, drawn.batch, optimizer, precision, drawn.footprint)


def _toggled(group: Dict[str, Any], entries: Sequence[Entry], ranges: Ranges) -> List[Job]:
    known, footprints = {entry.id: entry for entry in entries}, load_footprints()
    jobs = []
    for name in group["models"]:
        if name not in known:
            raise ConfigError(f"toggle: {name!r} is not in the catalogue")
        entry = known[name]
        size = group.get("size", entry.sizes[0])
        print_ = footprints.get(name, UNKNOWN).scaled(entry.task, size, entry.sizes[0])
        for precision in group.get("precisions", ["fp32"]):
            optimizer = group.get("optimizer", "adam")
            room = group.get("target_mib", 8000) - print_.fixed_mib(optimizer, precision)
            batch = group.get("batch") or max(int(room / print_.per_sample_mib(precision)), entry.min_batch)
            plain = _job(entry, size, batch, optimizer, precision, print_)
            jobs += [replace(plain, toggles=toggles) for toggles in [{}, *group["toggles"]]]
    return jobs


def _pick(weights: Mapping[str, float], rng: random.Random) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _interleave(a: List[Job], b: List[Job]) -> List[Job]:
    """Both lists, each in its order, spread evenly through the result."""
    ranked: List[Tuple[float, int, Job]] = [((i + 0.5) / len(a), 0, job) for i, job in enumerate(a)]
    ranked += [((i + 0.5) / len(b), 1, job) for i, job in enumerate(b)]
    return [job for _, _, job in sorted(ranked, key=lambda item: item[:2])]


def _unique(jobs: List[Job]) -> List[Job]:
    return list({job.key: job for job in jobs}.values())
