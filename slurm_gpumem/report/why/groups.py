"""Layers that repeat as one line: 12 × 192 MiB of encoder.layer.{0..11}.intermediate, not twelve lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Sequence, Tuple

from slurm_gpumem.estimators.explain.timeline import Living

_LONGEST = 24
_Named = Tuple[Tuple[str, ...], Living]
"""The parts of a layer's name, folded ones among them, and its tensor."""


def repeated(alive: Sequence[Living]) -> List[Living]:
    """The same tensors, those alike but for a number in their layer's name as one; the largest sum first."""
    found = [(tuple(one.layer.split(".")), one) for one in alive]
    for place in range(max((len(parts) for parts, _ in found), default=0)):
        groups: Dict[Tuple[object, ...], List[_Named]] = {}
        for number, (parts, one) in enumerate(found):
            numbered = place < len(parts) and parts[place].isascii() and parts[place].isdigit()
            # What cannot be folded here is a group of its own.
            where = (parts[:place], parts[place + 1 :]) if numbered else number
            key = (where, one.bytes, one.operator, one.category, one.phase, one.count)
            groups.setdefault(key, []).append((parts, one))
        found = [_merged(group, place) for group in groups.values()]
    named = [replace(one, layer=".".join(parts)) for parts, one in found]
    return sorted(named, key=lambda one: (-one.bytes * one.count, one.layer))


def _merged(group: Sequence[_Named], place: int) -> _Named:
    parts, one = group[0]
    if len(group) == 1:
        return parts, one
    numbers = sorted({int(others[place]) for others, _ in group})
    folded = (*parts[:place], _numbers(numbers), *parts[place + 1 :])
    return folded, replace(one, count=sum(other.count for _, other in group))


def _numbers(numbers: Sequence[int]) -> str:
    """ "{0..3,5}" of 0, 1, 2, 3 and 5."""
    if len(numbers) == 1:
        return str(numbers[0])
    spans: List[List[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ",".join(str(low) if low == high else f"{low}..{high}" for low, high in spans)
    if len(text) > _LONGEST:
        text = f"{numbers[0]}..{numbers[-1]}, {len(numbers)} of them"
    return f"{{{text}}}"
