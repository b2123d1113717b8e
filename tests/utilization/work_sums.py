"""Sums over the kernels of a step."""

from __future__ import annotations

from typing import List, Tuple

from slurm_gpumem.utilization.work import KINDS, StepWork


def total_flops(work: StepWork) -> int:
    """Floating-point operations of the step."""
    return sum(key[1] * count for key, count in work.kernels.items())


def kind_totals(work: StepWork) -> List[Tuple[int, int, int]]:
    """By kind: kernels, operations, bytes."""
    found = [[0, 0, 0] for _ in KINDS]
    for (kind, flops, moved, _), count in work.kernels.items():
        found[kind][0] += count
        found[kind][1] += flops * count
        found[kind][2] += moved * count
    return [(a, b, c) for a, b, c in found]
