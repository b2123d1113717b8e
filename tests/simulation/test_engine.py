from __future__ import annotations

import heapq
import random
from math import isnan
from pathlib import Path
from typing import List

import pytest

from lab.simulate.figures import figures
from lab.simulate.layouts import LAYOUTS
from lab.simulate.policies import POLICIES
from slurm_gpumem.errors import UsageError
from slurm_gpumem.simulation.engine import simulate
from slurm_gpumem.simulation.types import SimJob
from tests.simulation.jobs import HEAVY, LIGHT, job, setup
from tests.support.kept import assert_kept


def _random_jobs(count: int, seed: int, *, most_gpus: int = 4) -> List[SimJob]:
    rng = random.Random(seed)
    return [
        job(
            number,
            arrival=rng.uniform(0, 5000),
            work=rng.uniform(10, 2000),
            mib=rng.choice([1500, 6000, 12_000, 30_000]),
            gpus=rng.choice([1, 1, 1, 1, 2, most_gpus]),
            load=rng.choice([LIGHT, HEAVY]),
            user=rng.choice("abc"),
            startup_mib=600,
            startup_s=rng.choice([0.0, 40.0]),
            limit=rng.choice([0.0, 3000.0]),
        )
        for number in range(count)
    ]


def test_exclusive_use_is_the_plain_queue_that_anybody_can_compute() -> None:
    jobs = [one._replace(gpus=1) for one in _random_jobs(200, 1)]
    outcome = simulate(jobs, setup("exclusive", gpus=4))
    free = [0.0] * 4
    for place, one in enumerate(outcome.jobs):
        start = max(one.arrival, heapq.heappop(free))
        assert outcome.start[place] == pytest.approx(start)
        assert outcome.end[place] == pytest.approx(start + one.work)
        heapq.heappush(free, start + one.work)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("mode", ["mps", "mps-shared", "timeslice", "mig"])
def test_under_every_policy_every_job_ends_and_none_is_faster_than_alone(policy: str, mode: str) -> None:
    jobs = _random_jobs(40, 2)
    mode = "exclusive" if POLICIES[policy].whole else mode
    if mode == "mig" and not POLICIES[policy].granted:
        with pytest.raises(UsageError, match="gives out no instances"):
            simulate(jobs, setup(policy, mode=mode))
        return
    mig = (LAYOUTS["3g+2g+1g"],) * 4 if mode == "mig" else ()
    outcome = simulate(jobs, setup(policy, gpus=4, nodes=2, mode=mode, mig=mig, record=True))
    plain = [[round(one, 3) for one in values] for values in (outcome.start, outcome.end, outcome.sums)]
    curve = [[round(one, 3) for one in change] for change in outcome.curve]
    runs = [(*run[:2], round(run.start, 3), round(run.end, 3), *run[4:]) for run in outcome.runs]
    whole = [plain, curve, runs, outcome.crashes, outcome.over_limit]
    assert_kept(Path(__file__).with_name("engine.json"), {f"{policy} {mode}": repr(whole)})
    assert not outcome.refused
    for one, start, end in zip(outcome.jobs, outcome.start, outcome.end):
        assert start >= one.arrival
        assert end - start >= one.work - 1e-6
    for _, _, used, active in outcome.curve:
        assert 0 <= used <= 40 * 1024
        assert 0 <= active <= 1
    assert outcome.curve[-1][2] == 0
    assert outcome.sums.busy_seconds <= outcome.span * 8 + 1e-6


@pytest.mark.parametrize("policy", [name for name in sorted(POLICIES) if POLICIES[name].granted])
def test_what_is_granted_on_a_gpu_never_exceeds_its_memory(policy: str) -> None:
    outcome = simulate(_random_jobs(150, 3), setup(policy, gpus=2, nodes=2, record=True))
    changes = []
    for run in outcome.runs:
        for gpu in run.gpus:
            changes += [(run.start, 1, gpu, run.granted_mib), (run.end, 0, gpu, -run.granted_mib)]
    held = dict.fromkeys(range(4), 0)
    for _, _, gpu, mib in sorted(changes):
        held[gpu] += mib
        assert 0 <= held[gpu] <= 40 * 1024


def test_the_same_trace_twice_is_the_same_result() -> None:
    jobs = _random_jobs(100, 4)
    first, second = (simulate(jobs, setup("slurm-pack", gpus=4)) for _ in range(2))
    assert list(first.end) == list(second.end)
    assert first.sums == second.sums


def test_two_light_jobs_share_a_gpu_and_two_heavy_ones_slow_each_other_down() -> None:
    light = simulate([job(0), job(1)], setup("slurm-pack"))
    assert list(light.start) == [0.0, 0.0]
    assert max(light.end) < 110
    heavy = simulate([job(0, load=HEAVY), job(1, load=HEAVY)], setup("slurm-pack"))
    assert min(heavy.end) > 140


def test_jobs_of_two_users_take_turns_unless_they_share_a_server() -> None:
    jobs = [job(0, load=HEAVY, user="a"), job(1, load=HEAVY, user="b")]
    own, shared, sliced = (
        max(simulate(jobs, setup("slurm-pack", mode=mode)).end) for mode in ("mps", "mps-shared", "timeslice")
    )
    assert own == pytest.approx(sliced, rel=0.2), "servers take turns as processes do, a little more evenly"
    assert shared < own


def test_slurm_packs_shards_on_the_first_gpu_and_spreads_them_over_the_freest() -> None:
    jobs = [job(number, mib=12 * 1024, load=LIGHT) for number in range(8)]
    packed = simulate(jobs, setup("slurm-pack", gpus=4, record=True))
    spread = simulate(jobs[:6], setup("slurm-spread", gpus=4, record=True))

    def where(outcome: object) -> List[int]:
        return [run.gpus[0] for run in sorted(outcome.runs)]  # type: ignore[attr-defined]

    # As measured on real Slurm: design notes of the project.
    assert where(packed) == [0, 0, 0, 1, 1, 1, 2, 2]
    assert where(spread) == [0, 1, 2, 3, 0, 1]


def test_a_job_beyond_its_share_crashes_alone_and_runs_again_on_a_whole_gpu() -> None:
    small = job(0, mib=20_000, startup_s=30.0, startup_mib=600, estimates={"text": 10_000})
    other = job(1, work=1000.0)
    outcome = simulate(
        [small, other._replace(estimates={"text": 5000})], setup("slurm-pack", gpus=2, estimator="text")
    )
    assert list(outcome.crashes) == [1, 0]
    assert outcome.start[0] == pytest.approx(30 + 121)
    assert not isnan(outcome.end[1])


def test_the_ladder_asks_for_more_before_a_whole_gpu() -> None:
    one = job(0, mib=12_000, estimates={"text": 10_000})
    outcome = simulate([one], setup("slurm-pack", estimator="text", ladder=(25,), record=True))
    assert [run.granted_mib for run in outcome.runs] == [10 * 1024, 13 * 1024]


def test_without_estimates_a_job_that_finds_no_memory_crashes_and_waits_for_an_idle_gpu() -> None:
    grows = {"startup_mib": 600, "startup_s": 60.0}
    jobs = [job(0, mib=30_000, **grows), job(1, arrival=5.0, mib=30_000, **grows)]
    outcome = simulate(jobs, setup("round-robin", estimator="none"))
    assert list(outcome.crashes) == [0, 1]
    assert outcome.start[1] == pytest.approx(outcome.end[0])


def test_backfill_starts_short_jobs_without_delaying_the_first_of_the_queue() -> None:
    jobs = [
        job(0, work=1000.0, limit=1000.0, gpus=1),
        job(1, arrival=1.0, work=100.0, limit=100.0, gpus=2),
        job(2, arrival=2.0, work=400.0, limit=400.0, gpus=1),
        job(3, arrival=3.0, work=2000.0, limit=2000.0, gpus=1),
    ]
    outcome = simulate(jobs, setup("slurm", gpus=2))
    assert outcome.start[1] == pytest.approx(1000.0)
    assert outcome.start[2] == pytest.approx(30.0)
    assert outcome.start[3] >= 1100.0
    strict = simulate(jobs, setup("exclusive", gpus=2))
    assert strict.start[2] >= 1100.0


def test_others_go_around_a_job_until_it_has_waited_as_long_as_they_may() -> None:
    long = [job(number, arrival=float(number), work=500.0, limit=9000.0) for number in (0, 2, 3, 4)]
    large = job(1, arrival=1.0, work=100.0, limit=9000.0, gpus=2)
    chosen = setup("slurm", gpus=2)
    strict = simulate([*long, large], chosen)
    # Slurm holds the second GPU for the large job from the start.
    assert sorted(strict.start)[1] == pytest.approx(500.0)
    patient = simulate([*long, large], chosen._replace(timing=chosen.timing._replace(reserve_after_s=600.0)))
    started = dict(zip((one.number for one in patient.jobs), patient.start))
    assert started[2] == pytest.approx(2.0)
    # 600 s later nobody goes around it any more.
    assert 1000.0 <= started[1] <= 1010.0


def test_a_job_that_starts_up_slows_nobody_down_and_is_not_slowed_down() -> None:
    jobs = [job(0, load=HEAVY, work=100.0), job(1, load=HEAVY, work=100.0)._replace(startup_s=60.0)]
    alone, both = simulate(jobs[:1], setup("slurm-pack")), simulate(jobs, setup("slurm-pack"))
    none = simulate([one._replace(startup_s=0.0) for one in jobs], setup("slurm-pack"))
    assert alone.end[0] < both.end[0] < none.end[0]
    # The first 60 s pass at full speed, whatever is beside it.
    assert 100.0 < both.end[1] < none.end[1]


def test_higher_priority_goes_first() -> None:
    jobs = [job(0), job(1, arrival=1.0), job(2, arrival=2.0, priority=5)]
    outcome = simulate(jobs, setup("slurm"))
    assert outcome.start[2] < outcome.start[1]


def test_a_job_larger_than_a_node_gets_whole_nodes() -> None:
    jobs = [job(0, work=50.0), job(1, arrival=1.0, gpus=8)]
    outcome = simulate(jobs, setup("slurm", gpus=4, nodes=3, record=True))
    assert sorted(outcome.runs)[1].gpus == (4, 5, 6, 7, 8, 9, 10, 11)


def test_jobs_that_fit_nowhere_are_refused_and_the_rest_goes_on() -> None:
    outcome = simulate([job(0, mib=50_000), job(1, gpus=9), job(2)], setup("slurm-pack", gpus=4))
    assert set(outcome.refused) == {0, 1}
    assert figures(outcome).ended == 1


def test_remembered_peaks_are_used_once_a_run_has_ended() -> None:
    same = {"user": "a", "name": "train", "estimates": {"text": 30_000}}
    jobs = [job(0, mib=5000, **same), job(1, arrival=200.0, mib=5000, **same)]
    outcome = simulate(jobs, setup("slurm-pack", estimator="remembered", record=True))
    assert [run.granted_mib for run in outcome.runs] == [30 * 1024, 5 * 1024]


def test_energy_of_an_idle_gpu_and_of_a_busy_one() -> None:
    idle = simulate([job(0, work=0.0), job(1, arrival=1000.0, work=0.0)], setup("exclusive")).sums.joules
    busy = simulate([job(0, work=1000.0, load=HEAVY)], setup("exclusive")).sums.joules
    assert idle == pytest.approx(1000 * 400 * 102.6 / 700)
    assert 1000 * 200 < busy < 1000 * 400


def test_seven_of_the_smallest_mig_instances_fill_a_gpu_and_each_has_a_seventh_of_it() -> None:
    jobs = [job(number, mib=4000, load=HEAVY) for number in range(8)]
    outcome = simulate(jobs, setup("slurm-pack", mode="mig", mig=((1,) * 7,)))
    assert sorted(outcome.start)[:7] == [0.0] * 7
    assert max(outcome.start) == pytest.approx(min(outcome.end))
    assert min(outcome.end) == pytest.approx(100 * 0.9 * 7)


def test_nothing_is_counted_after_the_last_job_has_ended() -> None:
    # Beside the other the long job would end much later than it does in the end.
    jobs = [job(0, work=100.0, load=HEAVY), job(1, work=1000.0, load=HEAVY)]
    outcome = simulate(jobs, setup("slurm-pack"))
    assert outcome.span == pytest.approx(max(outcome.end))
    # 330 W alone, 372 W at most for the short time that both run.
    assert outcome.sums.joules <= outcome.span * 345
    assert outcome.sums.busy_seconds == pytest.approx(outcome.span)
