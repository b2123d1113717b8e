"""Collect the convolutions of traced runs for `probe`, each with the batch size and type it ran with.

    python -m slurm_gpumem.training.probe_shapes --cache DIR

The folder is what `trace_rows` filled; only models of the development part are taken. Writes
configs/convolutions-of-runs.json.gz: a list of convolutions as configs/convolutions.json.gz has them, each
followed by type, channels last and batch.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from math import prod
from pathlib import Path
from typing import Any, List, Optional, Set

from slurm_gpumem.memory.accuracy import part_of
from slurm_gpumem.memory.ground_truth import load_ground_truth_rows
from slurm_gpumem.memory.trace.workspace import BYTES
from slurm_gpumem.model.own import parse_own
from slurm_gpumem.model.trace_types import Convolution, evaluate
from slurm_gpumem.training.command import exit_code
from slurm_gpumem.training.probe_cases import RUNS
from slurm_gpumem.training.trace_rows import path_of

LARGEST = 3 << 30
"""Bytes of input and output: several probes share the GPU."""


def shapes_of(cache: Path) -> List[List[Any]]:
    """Every distinct convolution of the folder's development runs, in a fixed order."""
    found: Set[str] = set()
    for row in load_ground_truth_rows():
        path = path_of(cache, row["key"])
        if part_of(row["model"]) != "development" or not path.exists():
            continue
        with gzip.open(path, "rt") as file:
            file.readline()
            trace = parse_own(file.read(), origin=row["key"]).trace
        assert trace is not None
        for site in trace.sites:
            c = site.convolution
            if c is not None and c.call == "forward" and c.dtype != "fp64":
                rows = evaluate(c.batch, trace.job.batch)
                if rows * _sample_bytes(c) <= LARGEST:
                    found.add(json.dumps(_shape(c, rows)))
    return [json.loads(text) for text in sorted(found)]


def _sample_bytes(c: Convolution) -> int:
    return (c.channels * prod(c.size) + c.outputs * prod(c.out_size)) * BYTES[c.dtype]


def _shape(c: Convolution, rows: int) -> List[Any]:
    extra = [0] * len(c.size)
    if c.transposed:
        plain = [(n - 1) * s - 2 * p + d * (k - 1) + 1
                 for n, s, p, d, k in zip(c.size, c.stride, c.padding, c.dilation, c.kernel)]  # fmt: skip
        extra = [size - without for size, without in zip(c.out_size, plain)]
    return [c.channels, c.outputs, c.size, c.kernel, c.stride, c.padding, c.dilation, c.transposed, extra,
            c.groups, c.dtype, c.channels_last, rows]  # fmt: skip


def main(argv: Optional[List[str]] = None) -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(prog="python -m slurm_gpumem.training.probe_shapes", description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, metavar="DIR")
    options = parser.parse_args(argv)
    return exit_code(lambda: _run(options.cache))


def _run(cache: Path) -> int:
    shapes = shapes_of(cache)
    RUNS.write_bytes(gzip.compress(json.dumps(shapes, separators=(",", ":")).encode(), mtime=0))
    print(f"{len(shapes):,} convolutions: {RUNS.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
