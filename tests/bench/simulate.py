"""How long the simulator takes on large clusters: CPU seconds and memory, each case in a process of its own.

python tests/bench/simulate.py [--largest] [--only POLICY] [--load X]     the largest case takes minutes
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from typing import List, Optional

CASES = ((1_000, 10), (10_000, 100), (100_000, 1_000))
LARGEST = (1_000_000, 10_000)
POLICIES = ("slurm", "slurm-pack", "budget")


def measure(jobs: int, gpus: int, policy: str, load: float) -> None:
    from lab.simulate.figures import figures
    from lab.simulate.generate import generate
    from lab.simulate.policies import POLICIES as KNOWN
    from lab.simulate.policies import timing_of
    from slurm_gpumem.simulation.engine import simulate
    from slurm_gpumem.simulation.types import Fleet, Setup

    fleet = Fleet(max(1, gpus // 8), min(8, gpus), 40 * 1024)
    trace = generate(jobs, fleet, load=load)
    begin = time.process_time()
    chosen = KNOWN[policy]
    mode = "exclusive" if chosen.whole else "mps"
    found = figures(simulate(trace, Setup(fleet, chosen, "text", mode, timing_of(chosen))))
    seconds = time.process_time() - begin
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{jobs:>9,} {fleet.gpus:>7,}  {policy:<12} {seconds:>7.1f}  {seconds / jobs * 1e6:>6.0f}  "
        f"{mib:>6.0f}  "
        f"{found.waiting.mean / 60:>8.1f}  {found.longest_queue:>7,}  {found.ended:>9,}",
        flush=True,
    )


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--largest", action="store_true", help=f"also {LARGEST[0]:,} jobs on {LARGEST[1]:,} GPUs"
    )
    parser.add_argument("--only", choices=POLICIES, help="one policy")
    parser.add_argument("--load", type=float, default=0.9, help="of the GPUs if nothing were shared (0.9)")
    args = parser.parse_args(argv)
    print(
        f"{'jobs':>9} {'GPUs':>7}  {'policy':<12} {'CPU s':>7}  µs/job     MiB  wait min  longest      ended",
        flush=True,
    )
    for jobs, gpus in (*CASES, *((LARGEST,) if args.largest else ())):
        for policy in (args.only,) if args.only else POLICIES:
            child = os.fork()
            if child == 0:
                measure(jobs, gpus, policy, args.load)
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
