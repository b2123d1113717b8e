"""From what a recorder saw to a `Trace`: sizes become polynomials of the batch, blocks become sites.

The last step is traced at another batch size than those before it. Its allocations, paired with the same
ones of an earlier step, tell how each size grows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Dict, List, Optional, Sequence, Tuple

from slurm_gpumem.model.live.recorder import Block
from slurm_gpumem.model.trace_types import Convolution, Phase, Polynomial, Site, Trace, TracedJob

GROWING = ("forward", "backward", "evaluate")
"""Phases whose sizes may depend on the batch."""


@dataclass(frozen=True)
class Seen:
    """A recorder's notes at the end of the last step."""

    blocks: Sequence[Block]
    events: Sequence[int]
    phases: Sequence[Tuple[int, str, int]]
    uses_conv: bool
    uses_matmul: bool
    remarks: Tuple[str, ...]


def assemble(seen: Seen, job: TracedJob, way: str, batches: Sequence[int]) -> Trace:
    """The trace; `batches` has the batch size of each step, equal ones if scaling is not known."""
    by_step = _blocks_by_step(seen)
    sizes: Dict[int, Polynomial] = {}
    rows: Dict[int, Polynomial] = {}
    last = len(batches)
    scalable = batches[-1] != batches[0]
    if scalable:
        for step in range(1, last):
            for phase in GROWING:
                _pair(
                    seen.blocks,
                    by_step.get((step, phase), []),
                    by_step.get((last, phase), []),
                    (batches[step - 1], batches[-1]),
                    (sizes, rows),
                )
    sites: Dict[Site, int] = {}
    events: List[int] = []
    allocated = 0
    numbers: Dict[int, int] = {}
    for event in seen.events:
        if event < 0:
            events.append(numbers[~event] - allocated)
            continue
        site = _site(seen.blocks[event], sizes.get(event), rows.get(event))
        events.append(sites.setdefault(site, len(sites)))
        numbers[event] = allocated
        allocated += 1
    return Trace(
        job=job,
        way=way,
        sites=tuple(sites),
        events=tuple(events),
        phases=tuple(Phase(*phase) for phase in seen.phases),
        scalable=scalable,
        uses_conv=seen.uses_conv,
        uses_matmul=seen.uses_matmul,
        remarks=seen.remarks,
    )


def _site(block: Block, size: Optional[Polynomial], rows: Optional[Polynomial]) -> Site:
    convolution = block.convolution
    if convolution is not None and rows is not None:
        convolution = replace(convolution, batch=rows)
    category = block.category or ("optimizer" if block.phase == "optimizer" else "activations")
    if size is None:
        size = (block.nbytes,) if block.nbytes else ()
    return Site(size, block.operator, block.module, category, convolution)


def _blocks_by_step(seen: Seen) -> Dict[Tuple[int, str], List[int]]:
    found: Dict[Tuple[int, str], List[int]] = {}
    starts = [*seen.phases, (len(seen.events), "", 0)]
    for (first, name, step), (end, _, _) in zip(starts, starts[1:]):
        blocks = [event for event in seen.events[first:end] if event >= 0]
        found.setdefault((step, name), []).extend(blocks)
    return found


def _pair(
    blocks: Sequence[Block],
    ours: Sequence[int],
    theirs: Sequence[int],
    batches: Tuple[int, int],
    found: Tuple[Dict[int, Polynomial], Dict[int, Polynomial]],
) -> None:
    """Give the blocks of two steps the size that both of them show."""
    sizes, rows = found
    for mine, other in _matched(blocks, ours, theirs):
        a, b = blocks[mine], blocks[other]
        size = _growth(a, b, batches)
        sizes[mine] = size
        sizes[other] = size
        if a.convolution and b.convolution:
            rows[mine] = rows[other] = _rows(a.convolution, b.convolution, batches)


def _matched(blocks: Sequence[Block], ours: Sequence[int], theirs: Sequence[int]) -> List[Tuple[int, int]]:
    def keys(numbers: Sequence[int]) -> List[Tuple[str, str, int]]:
        return [(blocks[n].operator, blocks[n].module, len(blocks[n].shape)) for n in numbers]

    mine, other = keys(ours), keys(theirs)
    if mine == other:
        return list(zip(ours, theirs))
    pairs: List[Tuple[int, int]] = []
    for a, b, size in SequenceMatcher(None, mine, other, autojunk=False).get_matching_blocks():
        pairs += zip(ours[a : a + size], theirs[b : b + size])
    return pairs


def _rows(a: Convolution, b: Convolution, batches: Tuple[int, int]) -> Polynomial:
    return _line(a.batch[0], b.batch[0], batches) or a.batch


def _growth(a: Block, b: Block, batches: Tuple[int, int]) -> Polynomial:
    """Bytes as a polynomial of the batch, from the same tensor at two batch sizes."""
    if a.nbytes == b.nbytes:
        return (a.nbytes,) if a.nbytes else ()
    if a.shape and len(a.shape) == len(b.shape):
        product: Polynomial = (a.itemsize,)
        for one, two in zip(a.shape, b.shape):
            line = _line(one, two, batches)
            if line is None:
                break
            product = _times(product, line)
        else:
            if len(product) <= 4:
                return product
    line = _line(a.nbytes, b.nbytes, batches)
    if line is not None and line[0] >= 0:
        return line
    if a.nbytes * batches[1] ** 2 == b.nbytes * batches[0] ** 2 and a.nbytes % batches[0] ** 2 == 0:
        return (0, 0, a.nbytes // batches[0] ** 2)
    slope = (b.nbytes - a.nbytes) // (batches[1] - batches[0])
    return (a.nbytes - slope * batches[0], slope)


def _line(one: int, two: int, batches: Tuple[int, int]) -> Optional[Polynomial]:
    """start + slope · batch through two points, in whole numbers."""
    slope, rest = divmod(two - one, batches[1] - batches[0])
    if rest:
        return None
    return (one - slope * batches[0], slope) if slope else (one,)


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    result = [0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            result[i + j] += x * y
    return tuple(result)
