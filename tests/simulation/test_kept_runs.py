"""What the simulator makes of small queues under any setup is what it was; WRITE=1 keeps a wanted change."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Dict

import pytest

from lab.simulate.figures import figures
from lab.simulate.layouts import LAYOUTS
from lab.simulate.policies import POLICIES
from slurm_gpumem.errors import GpumemError
from slurm_gpumem.simulation.engine import simulate
from slurm_gpumem.simulation.types import MODES, Setup, SimJob, Timing, Turns
from slurm_gpumem.utilization.interference import JobLoad
from tests.simulation.jobs import setup
from tests.support.kept import assert_kept, plain


def _setup(dice: random.Random) -> Setup:
    choose = dice.choice
    policy = choose([*sorted(POLICIES), *["slurm-pack", "slurm-spread", "slurm-level"] * 4])
    modes = [mode for mode in MODES if mode != "exclusive" and (mode != "mig" or POLICIES[policy].granted)]
    mode = "exclusive" if POLICIES[policy].whole else choose(modes)
    made = setup(
        policy, gpus=choose((1, 2, 4)), nodes=choose((1, 1, 2, 3)), memory_gib=choose((16, 40)), mode=mode,
        estimator=choose(("oracle", "text", "none", "remembered")), record=True,
        ladder=choose(((), (25,), (25, 50))), shard_mib=choose((1024, 512)),
        mig=tuple(choose(sorted(LAYOUTS.values())) for _ in range(choose((1, 2)))) if mode == "mig" else (),
        timing=Timing(
            choose((0.0, 60.0)), choose((0.0, 30.0)), choose((0.0, 120.0)), choose((5.0, 30.0)),
            choose((1, 3, 100)), choose((0.0, 300.0)), choose((600.0, 86_400.0)),
        ),
        turns=Turns(
            choose((0.0, 0.0, 200.0)), choose((5.0, 30.0)), choose((0.0, 60.0)), dice.random() < 0.4,
            choose((0.0, 20.0, 100.0)),
        ),
    )  # fmt: skip
    fleet = made.fleet._replace(power_limit=choose((0.0, 250.0)), max_watts=choose((400.0, 700.0)))
    turns = made.turns if made.policy.name.startswith("slurm-") else Turns()
    return made._replace(fleet=fleet, turns=turns)


def _job(number: int, dice: random.Random) -> SimJob:
    choose, mib = dice.choice, dice.choice((900, 3000, 6000, 12_000, 14_000))
    return SimJob(
        number, dice.uniform(0, 300), choose((0.0, dice.uniform(9, 500))), choose((1, 1, 1, 2, 4, 8)),
        mib, JobLoad(*(dice.random() for _ in range(4))), choose((1, 600)),
        choose((0.0, 0.0, 40.0)), choose("ab"), choose(("x", "y", "")), "",
        choose((0.0, 60.0, 400.0, 3000.0)), choose((0, 0, 5)),
        {"text": choose((mib, mib // 2, 1000, 0)), "oracle": mib},
    )  # fmt: skip


@pytest.mark.parametrize("part", range(8))
def test_a_run_is_what_it_was(part: int) -> None:
    said: Dict[str, str] = {}
    for seed in range(part * 50, part * 50 + 50):
        dice = random.Random(seed)
        chosen = _setup(dice)
        jobs = [_job(number, dice) for number in range(dice.choice((3, 8, 16)))]
        try:
            outcome = simulate(jobs, chosen)
            told = repr(plain([outcome, figures(outcome)]))
        except GpumemError as error:
            told = str(error)
        said[f"seeds {seed // 5 * 5}…"] = said.get(f"seeds {seed // 5 * 5}…", "") + told + "\n"
    assert_kept(Path(__file__).with_name("runs.json"), said)
