"""`python -m lab.simulate`: a trace of jobs on GPUs under one or several policies (lab/docs/simulate.md)."""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import List, NamedTuple, Optional, Tuple

from lab.command import exit_code
from lab.simulate.compare import compare, comparison_json, table, users_table
from lab.simulate.generate import generate
from lab.simulate.layouts import split_gpus
from lab.simulate.policies import (
    POLICIES,
    PUBLISHED_TIMING,
    WHAT,
    find_policy,
    timing_of,
    with_slowdown,
)
from lab.simulate.trace_file import read_trace, write_trace
from slurm_gpumem.config.kinds import parse_ladder
from slurm_gpumem.errors import UnknownNameError, UsageError
from slurm_gpumem.simulation.requests import ESTIMATORS
from slurm_gpumem.simulation.types import MIG, MODES, Fleet, Policy, Setup, SimJob, Timing, Turns
from slurm_gpumem.simulation.what_if_text import parse_fleet
from slurm_gpumem.terminal.say import say
from slurm_gpumem.text import count
from slurm_gpumem.units import parse_seconds


class _Time(NamedTuple):
    """As it was given, and in seconds; None for never."""

    text: str
    seconds: Optional[float]


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    return exit_code(lambda: _run(_parser().parse_args(argv)))


def _run(args: argparse.Namespace) -> int:
    if args.policies:
        width = max(map(len, WHAT))
        print("\n".join(f"{name:<{width}}  {what}" for name, what in WHAT.items()))
        return 0
    if args.seeds < 1:
        raise UsageError(f"--seeds must be at least 1, not {args.seeds}")
    if args.max_slowdown is not None and args.max_slowdown <= 1:
        raise UsageError(f"--max-slowdown is a ratio above 1, like 1.5, not {args.max_slowdown:g}")
    setups = _setups(args)
    jobs = _jobs(args, setups[0][1].fleet)
    if args.write is not None:
        write_trace(args.write, jobs)
        say(f"{args.write}: {count(len(jobs), 'job')} written")
        return 0
    rows = compare(jobs, setups, args.seeds)
    if args.json:
        print(json.dumps(comparison_json(rows)))
        return 0
    fleet = setups[0][1].fleet
    seeds = "" if args.seeds == 1 else f", {args.seeds} seeds: mean, lowest and highest"
    print(f"{count(len(jobs), 'job')} on {fleet.gpus} × {fleet.name} ({fleet.memory_mib // 1024} GiB){seeds}")
    print("\n".join(table(rows)))
    if args.by_user:
        print("\n".join(["", *users_table(rows)]))
    refused = max(run.refused for row in rows for run in row.runs)
    if refused:
        say(f"{count(refused, 'job')} can never run here (too large for these GPUs): left out")
    return 0


def _jobs(args: argparse.Namespace, fleet: Fleet) -> List[SimJob]:
    if (args.trace is None) == (args.generate is None):
        raise UsageError("give a trace or --generate N: python -m lab.simulate TRACE")
    if args.generate is None:
        return read_trace(args.trace)
    if args.generate < 1:
        raise UsageError(f"--generate must be at least 1, not {args.generate}")
    return generate(args.generate, fleet)


def _setups(args: argparse.Namespace) -> List[Tuple[str, Setup]]:
    fleet = parse_fleet(args.gpus)
    steps = parse_ladder([word for word in args.ladder.split(",") if word])
    ladder = tuple(step.margin_percent for step in steps if step.margin_percent is not None)
    setups = []
    names = _names(args.policy, list(POLICIES))
    estimators = _names(args.estimator, list(ESTIMATORS))
    modes = _names(args.mode, list(MODES))
    if args.max_slowdown is not None and all(find_policy(name).whole for name in names):
        with_slowdown(find_policy(names[0]), args.max_slowdown)  # refused instead of ignored
    mig = () if args.mig is None else split_gpus(args.mig, fleet)
    if mig and MIG not in modes:
        raise UsageError("--mig belongs to --mode mig")
    for name, estimator, mode, (turn, turns) in product(names, estimators, modes, _turns(args)):
        policy = find_policy(name)
        if policy.whole:
            if (estimator, mode) != (estimators[0], modes[0]):
                continue
            # Nothing is shared: estimators and modes make no difference.
            mode, label = "exclusive", name
        elif mode == MIG and not policy.granted and len(modes) > 1:
            continue  # it gives out no instances
        else:
            if args.max_slowdown is not None:
                policy = with_slowdown(policy, args.max_slowdown)
            label = " ".join([name, estimator, *([mode] if len(modes) > 1 else [])])
        timing, layouts = _timing(args.decisions, policy), mig if mode == MIG else ()
        made = Setup(fleet, policy, estimator, mode, timing, ladder, mig=layouts, turns=turns)
        setups.append((label + turn, made))
    return setups


def _turns(args: argparse.Namespace) -> List[Tuple[str, Turns]]:
    """Every slot with every grace time, and what they add to a label."""
    found = []
    for slot, grace in product(args.slot, args.preempt):
        label = f" slot {slot.text}" if slot.seconds else ""
        label += f" grace {grace.text}" if grace.seconds is not None else ""
        turns = Turns(
            slot.seconds or 0.0, args.save, args.restart, grace.seconds is not None, grace.seconds or 0.0
        )
        found.append((label, turns))
    return found


def _times(text: str) -> List[_Time]:
    return [_Time(word, None if word == "none" else parse_seconds(word)) for word in _words(text)]


def _timing(decisions: str, policy: Policy) -> Timing:
    if decisions == "published" and not policy.granted:
        return PUBLISHED_TIMING
    return timing_of(policy)


def _words(text: str) -> List[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _names(text: str, known: List[str]) -> List[str]:
    words = known if text == "all" else _words(text)
    for word in words:
        if word not in known:
            raise UnknownNameError("name", word, known)
    if not words:
        raise UsageError(f"no name given; known: {', '.join(known)}")
    return words


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.simulate",
        description="Play a trace of jobs on GPUs under one or several policies and compare them.",
        epilog="Lists are separated by commas; every policy is combined with every estimator and mode.",
    )
    parser.add_argument("trace", nargs="?", type=Path, metavar="TRACE", help="file with the jobs")
    parser.add_argument("--generate", type=int, metavar="N", help="N random jobs of a large cluster instead")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the jobs as a trace and stop")
    parser.add_argument(
        "--gpus", default="4xa100-40gb", metavar="N", help="4xa100-40gb, or 16x8xh100 (nodes first)"
    )
    parser.add_argument(
        "--policy", default="exclusive,slurm-pack", metavar="NAMES", help='or "all" (--policies lists them)'
    )
    parser.add_argument("--policies", action="store_true", help="list the policies and stop")
    parser.add_argument("--estimator", default="oracle", metavar="NAMES", help=", ".join(ESTIMATORS))
    parser.add_argument("--mode", default="mps", metavar="NAMES", help=", ".join(MODES))
    parser.add_argument(
        "--mig", metavar="NxLAYOUT", help="mode mig: how many GPUs are split, and how: 2x3g+2g+1g"
    )
    parser.add_argument(
        "--max-slowdown", type=float, metavar="X", help="shares cover activity up to this slowdown"
    )
    parser.add_argument(
        "--ladder", default="whole-gpu", metavar="STEPS", help="after running out of memory: +25%%,whole-gpu"
    )
    parser.add_argument(
        "--decisions", choices=("at-once", "published"), default="published",
        help="how long round-robin, magm, lug, mug and the fits take to decide (default: as published)",
    )  # fmt: skip
    parser.add_argument(
        "--slot", type=_times, default="none", metavar="TIMES",
        help="jobs leave after this time and go on later: none,2h (policies of Slurm)",
    )  # fmt: skip
    parser.add_argument(
        "--preempt", type=_times, default="none", metavar="TIMES",
        help="jobs of a higher priority take the places of others, after this grace time: none,0s,2m",
    )  # fmt: skip
    parser.add_argument(
        "--save", type=parse_seconds, default=30.0, metavar="TIME", help="that a checkpoint takes (30s)"
    )
    parser.add_argument(
        "--restart",
        type=parse_seconds,
        default=60.0,
        metavar="TIME",
        help="until a job goes on from it (60s)",
    )
    parser.add_argument("--by-user", action="store_true", help="waits of each user as well")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="variations of the trace")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
