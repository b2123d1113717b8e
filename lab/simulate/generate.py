"""Jobs of a large cluster, drawn at random: for tests of scale and first looks at a policy.

Sizes follow what the dissertation reports of SenseTime's Venus cluster (its figure 6.1): 52.5 % of the
jobs on one GPU, 22.6 % on 8, 10.3 % on more; the rest is spread over 2 and 4. Times are log-normal with a
median of ten minutes and a mean of about an hour, as long-tailed as those of public traces; time limits
are a few times as long. Memory and activity are the middle assumption of `prior`.
"""

from __future__ import annotations

from math import exp
from random import Random
from typing import List

from slurm_gpumem.simulation.types import Fleet, SimJob
from slurm_gpumem.simulation.what_if import PRIORS, draw_load, draw_memory

SIZES = (1, 2, 4, 8, 16, 32)
WEIGHTS = (52.5, 7.3, 7.3, 22.6, 8.3, 2.0)
MEDIAN_S, SPREAD, LONGEST_S = 600.0, 1.9, 5 * 86_400.0
USERS = 200
"""For every thousand GPUs, at least twenty."""


def generate(count: int, fleet: Fleet, seed: int = 1, load: float = 0.9) -> List[SimJob]:
    """Jobs that would keep these GPUs busy for `load` of the time if each had its GPUs to itself."""
    rng = Random(seed)
    prior = PRIORS["middle"]
    users = max(20, USERS * fleet.gpus // 1000)
    able = [(size, weight) for size, weight in zip(SIZES, WEIGHTS) if size <= fleet.gpus]
    sizes = rng.choices([size for size, _ in able], [weight for _, weight in able], k=count)
    works = [min(LONGEST_S, MEDIAN_S * exp(rng.gauss(0.0, SPREAD))) for _ in range(count)]
    # The sum over these very jobs, not an expectation: long-tailed means are far off in a sample.
    between = sum(size * work for size, work in zip(sizes, works)) / (fleet.gpus * load * max(1, count))
    jobs: List[SimJob] = []
    arrival = 0.0
    for number, (size, work) in enumerate(zip(sizes, works)):
        memory = draw_memory(prior, fleet.memory_mib, rng)
        asked = min(fleet.memory_mib, int(memory * rng.uniform(1.0, 1.2)) + 1)
        jobs.append(
            SimJob(
                number, arrival, work, size, memory, draw_load(prior, rng), min(600, memory),
                min(30.0, work / 2),
                user=f"u{int(users * rng.random() ** 2)}", limit=work * rng.uniform(1.2, 6.0) + 300,
                estimates={"text": asked},
            )
        )  # fmt: skip
        arrival += rng.expovariate(1 / between) if between else 0.0
    return jobs
