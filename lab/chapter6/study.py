"""Print chapter 6's tables and figures, published beside simulated: `make chapter6`.

    python -m lab.chapter6.study [--seeds N] [--replay-60 FILE] [--replay-90 FILE]

The replays are the authors' own scripts, for those who have their repository.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from lab.chapter6 import published
from lab.chapter6.published import Experiment
from lab.chapter6.replay import read_replay
from lab.command import exit_code
from lab.places import SIMULATION, shown
from lab.simulate.compare import Compared, values_of, varied
from lab.simulate.figures import Spread, figures, spread
from lab.simulate.policies import PUBLISHED_TIMING, timing_of
from lab.simulate.trace_file import read_trace
from slurm_gpumem.simulation.engine import simulate
from slurm_gpumem.simulation.requests import NONE, ORACLE
from slurm_gpumem.simulation.types import Setup, SimJob
from slurm_gpumem.utilization.interference import JobLoad

SEEDS = 5
NEIGHBOURS = 7
Traces = Mapping[int, Sequence[SimJob]]
Results = Dict[Tuple[int, str], Compared]


def setup_of(one: Experiment) -> Setup:
    """The published manager on the published machine; Slurm with its own timing."""
    timing = timing_of(one.policy) if one.policy.backfill else PUBLISHED_TIMING
    mode = "exclusive" if one.policy.whole else one.mode
    return Setup(published.machine(), one.policy, one.estimator, mode, timing, mig=one.mig)


def run_all(traces: Traces, chosen: Sequence[Experiment], seeds: int) -> Results:
    """Every experiment on every variation of its trace that its estimator answers for."""
    found: Results = {}
    for one in chosen:
        jobs = traces[one.tasks]
        if one.estimator in (ORACLE, NONE) or all(one.estimator in job.estimates for job in jobs):
            setup = setup_of(one)
            runs = tuple(figures(simulate(varied(jobs, seed), setup)) for seed in range(seeds))
            found[one.tasks, one.label] = Compared(one.label, setup, runs)
    return found


def report(results: Results) -> List[str]:
    """All tables and figures as lines of text."""
    lines = [
        f"{'parts of exclusive use':<33} hours {'total time':>16} {'published':>13} {'crashes':>12} "
        "published energy published  wait  run done, minutes"
    ]
    lines += _table("Figures 6.5, 6.6: oracle, 90 tasks", published.ORACLES, results)
    lines += _table("Table 6.3, figures 6.7, 6.8: recovery only, 90 tasks", published.RECOVERY_ONLY, results)
    lines += _table("Table 6.4, figures 6.9, 6.10: estimators, 90 tasks", published.ESTIMATED, results)
    lines += _table("Tables 6.5, 6.6, figures 6.11, 6.12: 60 tasks", published.HEAVY, results)
    lines += _over_time(results)
    for tasks in (90, 60):
        ours = [one for one in published.OURS if (one.tasks, one.label) in results and one.tasks == tasks]
        if ours:
            split = [one for one in published.SPLIT if one.tasks == tasks]
            best = min(split, key=lambda one: _mean(results[tasks, one.label], "makespan_s"))
            title = f"Not published: Slurm with this project's requests, {tasks} tasks; MIG's best layout"
            lines += _table(title, [*ours, best], results)
    return lines


def _table(title: str, rows: Sequence[Experiment], results: Results) -> List[str]:
    lines = ["", title]
    for one in rows:
        if (one.tasks, one.label) not in results:
            continue
        row = results[one.tasks, one.label]
        total, energy = (_of_exclusive(results, one, name) for name in ("makespan_s", "energy_mj"))
        crashes = spread(values_of(row, "crashes"))
        said_energy = "" if one.mj is None else f"{one.mj / (published.HEAVY[0].mj or 1):.1%}"
        times = [_mean(row, f"{name}.mean") / 60 for name in ("waiting", "execution", "completion")]
        part = f"{total.mean:.1%} ({100 * total.low:.0f}–{100 * total.high:.0f})"
        ooms = f"{crashes.mean:.1f} ({crashes.low:.0f}–{crashes.high:.0f})"
        lines.append(
            f"{one.label:<33} {_mean(row, 'makespan_s') / 3600:>5.2f} {part:>16} {one.total:>13} {ooms:>12} "
            f"{'' if one.crashes is None else one.crashes:>9} {energy.mean:>6.1%} {said_energy:>9} "
            f"{times[0]:>5.0f} {times[1]:>4.0f} {times[2]:>4.0f}"
        )
    return lines


def _over_time(results: Results) -> List[str]:
    lines = ["", "Figures 6.13 to 6.15: means over time, 60 tasks, published and simulated"]
    lines.append(f"{'':<33}       memory  SM activity  watts of a GPU")
    for label, said in published.OVER_TIME.items():
        if (60, label) not in results:
            continue
        row = results[60, label]
        power = _mean(row, "energy_mj") * 1e6 / _mean(row, "makespan_s") / row.setup.fleet.gpus
        lines.append(
            f"{label:<33} {said.memory:>4.0%}  {_mean(row, 'memory'):>6.0%}  "
            f"{said.active:>5.0%}  {_mean(row, 'active'):>4.0%}  {said.watts:>8.0f}  {power:>4.0f}"
        )
    return lines


def _of_exclusive(results: Results, one: Experiment, figure: str) -> Spread:
    """Relative to exclusive use on the same variation of the trace."""
    base = values_of(results[one.tasks, "exclusive"], figure)
    return spread(
        [value / alone for value, alone in zip(values_of(results[one.tasks, one.label], figure), base)]
    )


def _mean(row: Compared, figure: str) -> float:
    return spread(values_of(row, figure)).mean


def own_traces() -> Traces:
    """The project's two traces."""
    return {tasks: read_trace(SIMULATION / f"{tasks}-tasks.csv") for tasks in (60, 90)}


def with_our_loads(theirs: Sequence[SimJob], ours: Traces, neighbours: int) -> List[SimJob]:
    """Activities are not published: each task gets the median of our jobs with the nearest memory."""
    runs = {job.name: job for jobs in ours.values() for job in jobs}

    def usual(job: SimJob) -> JobLoad:
        near = sorted(runs.values(), key=lambda one: abs(one.peak_mib - job.peak_mib))[:neighbours]
        return JobLoad(*(median(values) for values in zip(*(one.load for one in near))))

    return [job._replace(load=usual(job)) for job in theirs]


def main(argv: Optional[List[str]] = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"variations of the traces ({SEEDS})")
    parser.add_argument("--replay-60", type=Path, help="the authors' script of 60 tasks")
    parser.add_argument("--replay-90", type=Path, help="the authors' script of 90 tasks")
    parser.add_argument(
        "--neighbours", type=int, default=NEIGHBOURS,
        help=f"our jobs whose median activity a task of the replays gets ({NEIGHBOURS})",
    )  # fmt: skip
    return exit_code(lambda: _study(parser.parse_args(argv)))


def _study(options: Any) -> int:
    ours = own_traces()
    traces = dict(ours)
    for tasks, path in ((60, options.replay_60), (90, options.replay_90)):
        if path is not None:
            traces[tasks] = with_our_loads(read_replay(path), ours, options.neighbours)
    results = run_all(traces, published.experiments(), options.seeds)
    names = [str(path) if path else shown(SIMULATION / f"{tasks}-tasks.csv") for tasks, path in
             ((60, options.replay_60), (90, options.replay_90))]  # fmt: skip
    print(f"{names[0]} and {names[1]} on {published.GPUS}, {options.seeds} variations")
    print("\n".join(report(results)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
