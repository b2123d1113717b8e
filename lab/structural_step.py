"""Print the training step that the structural estimator reconstructs: one line per operation.

python -m lab.structural_step SUMMARY --batch-size 64 [--optimizer sgd] [--precision fp32]
"""

from __future__ import annotations

import argparse
import sys
from typing import List, Optional, Set

from lab.command import exit_code
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.structural.estimator import Replay, simulate
from slurm_gpumem.estimators.structural.walk import Walk
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.units import MIB

_LINE = "{:>4}  {:<22} {:>14} {:>10} {:>10} {:>12}"


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m lab.structural_step", description=__doc__)
    parser.add_argument("summary")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--gpu", default="h200")
    return exit_code(lambda: _print(parser.parse_args(argv)))


def _print(args: argparse.Namespace) -> int:
    job = TrainingJob(batch_size=args.batch_size, optimizer=args.optimizer, precision=args.precision)
    walk, result = simulate(read_summary(args.summary), job, find_gpu(args.gpu))
    print("\n".join(table(walk, result)))
    return 0


def table(walk: Walk, result: Replay) -> List[str]:
    """The lines: every operation of the forward pass with its output, saved and temporary memory."""
    tape = walk.tape
    lines = [_LINE.format("", "MiB", "makes", "saves", "workspace", "saved so far")]
    known: Set[int] = set(tape.inputs)
    counted: Set[int] = set()
    total = 0.0
    for number, op in enumerate(tape.ops):
        new = op.out.store not in known
        known.add(op.out.store)
        saved = [store for store in (*op.saved, *op.kept) if store not in counted]
        counted.update(saved)
        mib = sum(tape.sizes[store] for store in saved) / MIB
        total += mib
        makes = f"{op.out.bytes / MIB:.2f}" if new else "in place"
        work = f"{max(op.work) / MIB:.2f}" if op.work else ""
        lines.append(_LINE.format(number, op.label[:22], makes, f"{mib:.2f}", work, f"{total:.2f}"))
    stats = result.stats
    lines.append(f"parameters {sum(tape.params) / MIB:.2f} MiB, batch {_batch(walk):.2f} MiB")
    lines.append(
        f"peak allocated {stats.peak_allocated / MIB:.2f} MiB ({result.phase}), "
        f"peak reserved {stats.peak_reserved / MIB:.2f} MiB, {stats.events} events"
    )
    return lines


def _batch(walk: Walk) -> float:
    return sum(walk.tape.sizes[store] for store in walk.tape.inputs) / MIB


if __name__ == "__main__":
    sys.exit(main())
