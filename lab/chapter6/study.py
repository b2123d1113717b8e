"""Print chapter 6's tables and figures, published beside simulated: `make chapter6`.

    python -m lab.chapter6.study [--seeds N] [--replay-60 FILE] [--replay-90 FILE] [--json FILE]

The replays are the authors' own scripts, for those who have their repository.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from lab.chapter6 import published
from lab.chapter6.published import Experiment
from lab.chapter6.replay import read_replay
from lab.chapter6.sweeps import sweeps
from lab.command import exit_code
from lab.places import SIMULATION, shown
from slurm_gpumem.simulation.compare import Compared, comparison_json, values_of
from slurm_gpumem.simulation.engine import simulate
from slurm_gpumem.simulation.figures import Spread, figures, spread
from slurm_gpumem.simulation.policies import PUBLISHED_TIMING, timing_of
from slurm_gpumem.simulation.trace_file import read_trace
from slurm_gpumem.simulation.types import Setup, SimJob
from slurm_gpumem.simulation.vary import varied
from slurm_gpumem.utilization.interference import JobLoad

SEEDS = 5
Traces = Mapping[int, Sequence[SimJob]]
Results = Dict[Tuple[int, str], Compared]


def setup_of(one: Experiment) -> Setup:
    """The published manager on the published machine; Slurm with its own timing."""
    timing = timing_of(one.policy) if one.policy.backfill else PUBLISHED_TIMING
    mode = "exclusive" if one.policy.whole else one.mode
    return Setup(published.machine(), one.policy, one.estimator, mode, timing)


def run_all(traces: Traces, chosen: Sequence[Experiment], seeds: int) -> Results:
    """Every experiment on every variation of its trace."""
    found: Results = {}
    for one in chosen:
        if (one.tasks, one.label) not in found:
            setup = setup_of(one)
            runs = tuple(figures(simulate(varied(traces[one.tasks], seed), setup)) for seed in range(seeds))
            found[one.tasks, one.label] = Compared(one.label, setup, runs)
    return found


def report(results: Results) -> List[str]:
    """All tables and figures as lines of text."""
    lines: List[str] = []
    for number, rows in (("6.3", published.RECOVERY_ONLY), ("6.4", published.ESTIMATED)):
        lines += _crashes(f"Table {number}: crashes, 90 tasks", [(one, said) for one, said in rows], results)
    lines += _crashes(
        "Table 6.5: crashes, 60 tasks", [(one, said) for one, said, _ in published.HEAVY], results
    )
    lines += _energy(results)
    lines += _times("Figures 6.5 and 6.6: oracle, 90 tasks", published.ORACLES, "6.5", results)
    first = published.ORACLES[0]
    lines += _times(
        "Figures 6.7 and 6.8: recovery only, 90 tasks",
        [first, *(one for one, _ in published.RECOVERY_ONLY), *published.LEFT_OUT],
        "6.7",
        results,
    )
    lines += _times(
        "Figures 6.9 and 6.10: estimators, 90 tasks",
        [first, *(one for one, _ in published.ESTIMATED)],
        "6.9",
        results,
    )
    lines += _times(
        "Figures 6.11 and 6.12: 60 tasks", [one for one, _, _ in published.HEAVY], "6.11", results
    )
    lines += _over_time(results)
    for tasks in (90, 60):
        ours = [one for one in published.OURS if (one.tasks, one.label) in results and one.tasks == tasks]
        if ours:
            title = f"Not published: Slurm with this project's requests, {tasks} tasks"
            lines += _times(title, ours, "", results)
    return lines


def _crashes(title: str, rows: Sequence[Tuple[Experiment, int]], results: Results) -> List[str]:
    lines = ["", title, f"{'':<30} published  simulated  lowest to highest"]
    for one, said in rows:
        found = spread(values_of(results[one.tasks, one.label], "crashes"))
        lines.append(f"{one.label:<30} {said:>9}  {found.mean:>9.1f}  {found.low:.0f} to {found.high:.0f}")
    return lines


def _energy(results: Results) -> List[str]:
    lines = [
        "",
        "Table 6.6: energy, 60 tasks",
        f"{'':<30} published MJ  of exclusive  simulated MJ  of exclusive  lowest to highest",
    ]
    exclusive = published.HEAVY[0][2] or 1.0
    for one, _, said in published.HEAVY:
        if said is not None:
            found = _mean(results[60, one.label], "energy_mj")
            of_exclusive = _of_exclusive(results, one, "energy_mj")
            lines.append(
                f"{one.label:<30} {said:>12.1f}  {said / exclusive:>12.1%}  "
                f"{found:>12.1f}  {of_exclusive.mean:>12.1%}  {_range(of_exclusive)}"
            )
    return lines


def _times(title: str, rows: Sequence[Experiment], figure: str, results: Results) -> List[str]:
    said = published.SAID.get(figure, {})
    lines = ["", title]
    lines.append(
        f"{'':<28} total h  of exclusive  lowest to highest  wait min  run min  done min  OOM  "
        "published of the total"
    )
    for one in rows:
        row = results[one.tasks, one.label]
        total, share = _mean(row, "makespan_s"), _of_exclusive(results, one, "makespan_s")
        times = [_mean(row, f"{name}.mean") / 60 for name in ("waiting", "execution", "completion")]
        lines.append(
            f"{one.label:<28} {total / 3600:>7.2f}  {share.mean:>12.1%}  {_range(share):>17}  "
            f"{times[0]:>8.0f}  {times[1]:>7.0f}  {times[2]:>8.0f}  {_mean(row, 'crashes'):>3.1f}  "
            f"{said.get(one.label, '')}".rstrip()
        )
    return lines


def _over_time(results: Results) -> List[str]:
    lines = ["", "Figures 6.13 to 6.15: means over time, 60 tasks, published and simulated"]
    lines.append(f"{'':<30}       memory  SM activity  watts of a GPU")
    for label, said in published.OVER_TIME.items():
        row = results[60, label]
        power = _mean(row, "energy_mj") * 1e6 / _mean(row, "makespan_s") / row.setup.fleet.gpus
        lines.append(
            f"{label:<30} {said.memory:>4.0%}  {_mean(row, 'memory'):>6.0%}  "
            f"{said.active:>5.0%}  {_mean(row, 'active'):>4.0%}  {said.watts:>8.0f}  {power:>4.0f}"
        )
    return lines


def _of_exclusive(results: Results, one: Experiment, figure: str) -> Spread:
    """Relative to exclusive use on the same variation of the trace."""
    base = values_of(results[one.tasks, "exclusive"], figure)
    return spread(
        [value / alone for value, alone in zip(values_of(results[one.tasks, one.label], figure), base)]
    )


def _range(found: Spread) -> str:
    return f"{found.low:.0%} to {found.high:.0%}"


def _mean(row: Compared, figure: str) -> float:
    return spread(values_of(row, figure)).mean


def _has_estimates(jobs: Sequence[SimJob], one: Experiment) -> bool:
    """Whether the trace can tell what this experiment asks for: the authors' traces know nothing of ours."""
    return one not in published.OURS or all(set(job.estimates) >= {"text", "trace"} for job in jobs)


def own_traces() -> Traces:
    """The project's two traces."""
    return {tasks: read_trace(SIMULATION / f"{tasks}-tasks.csv") for tasks in (60, 90)}


def with_our_loads(theirs: Sequence[SimJob], ours: Sequence[SimJob]) -> List[SimJob]:
    """Activities are not published: each task gets those of our job with the nearest memory."""
    by_memory = sorted(ours, key=lambda job: job.peak_mib)

    def nearest(job: SimJob) -> JobLoad:
        return min(by_memory, key=lambda one: abs(one.peak_mib - job.peak_mib)).load

    return [job._replace(load=nearest(job)) for job in theirs]


def main(argv: Optional[List[str]] = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"variations of the traces ({SEEDS})")
    parser.add_argument("--replay-60", type=Path, help="the authors' script of 60 tasks")
    parser.add_argument("--replay-90", type=Path, help="the authors' script of 90 tasks")
    parser.add_argument("--json", type=Path, help="also write every figure of every seed")
    return exit_code(lambda: _study(parser.parse_args(argv)))


def _study(options: Any) -> int:
    traces = dict(own_traces())
    for tasks, path in ((60, options.replay_60), (90, options.replay_90)):
        if path is not None:
            traces[tasks] = with_our_loads(read_replay(path), traces[tasks])
    chosen = [one for one in published.experiments() if _has_estimates(traces[one.tasks], one)]
    results = run_all(traces, chosen, options.seeds)
    names = [str(path) if path else shown(SIMULATION / f"{tasks}-tasks.csv") for tasks, path in
             ((60, options.replay_60), (90, options.replay_90))]  # fmt: skip
    print(f"{names[0]} and {names[1]} on {published.GPUS}, {options.seeds} variations")
    print("\n".join(report(results)))
    print("\n".join(sweeps(traces, options.seeds)))
    if options.json:
        options.json.write_text(json.dumps(comparison_json(list(results.values()))) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
