"""From a recorder's notes to a `Trace`: sizes become polynomials of the batch, blocks become sites.

The last step is traced at another batch size than the steps before. Its allocations, paired with the same
allocations of an earlier step, show how each size grows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Counter as CounterType
from typing import Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from slurm_gpumem.summaries.trace_types import (
    Convolution,
    Kernel,
    Phase,
    Polynomial,
    Reduction,
    Site,
    Trace,
    TracedJob,
)
from slurm_gpumem.tracing.cuda.kernels import assembled
from slurm_gpumem.tracing.engine.recording import Block, Call

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
    kernels: Dict[int, List[Kernel]] = field(default_factory=dict)
    """By step, in order."""


def assemble(seen: Seen, job: TracedJob, batches: Sequence[int]) -> Trace:
    """The trace; `batches` has the batch size of each step, equal ones if scaling is not known."""
    by_step = _blocks_by_step(seen)
    sizes: Dict[int, Polynomial] = {}
    calls: Dict[int, Call] = {}
    last = len(batches)
    scalable = batches[-1] != batches[0]
    keeps_last = not scalable or _same_steps(seen, by_step, last)
    if scalable:
        for step in range(1, last):
            for phase in GROWING:
                _pair(
                    seen.blocks,
                    by_step.get((step, phase), []),
                    by_step.get((last, phase), []),
                    (batches[step - 1], batches[-1]),
                    (sizes, calls),
                )
    phases = [Phase(*phase) for phase in seen.phases if keeps_last or phase[2] < last]
    end = len(seen.events) if keeps_last else next(p[0] for p in seen.phases if p[2] == last)
    sites: Dict[Site, int] = {}
    events: List[int] = []
    allocated = 0
    numbers: Dict[int, int] = {}
    for event in seen.events[:end]:
        if event < 0:
            events.append(numbers[~event] - allocated)
            continue
        site = site_of(seen.blocks[event], sizes.get(event), calls.get(event))
        events.append(sites.setdefault(site, len(sites)))
        numbers[event] = allocated
        allocated += 1
    return Trace(
        job=job,
        way="meta",
        sites=tuple(sites),
        events=tuple(events),
        phases=tuple(phases),
        scalable=scalable,
        uses_conv=seen.uses_conv,
        uses_matmul=seen.uses_matmul,
        benchmark=seen.uses_conv and bool(torch.backends.cudnn.benchmark),
        remarks=seen.remarks,
        kernels=assembled(seen.kernels, batches),
    )


def site_of(block: Block, size: Optional[Polynomial], call: Optional[Call]) -> Site:
    """The place that a block was allocated at; its own size and call where none are given."""
    category = block.category or ("optimizer" if block.phase == "optimizer" else "activations")
    if size is None:
        size = (block.nbytes,) if block.nbytes else ()
    call = block.call if call is None else call
    return Site(
        bytes=size,
        operator=block.operator,
        module=block.module,
        category=category,
        convolution=call if isinstance(call, Convolution) else None,
        reduction=call if isinstance(call, Reduction) else None,
        stream=block.stream,
    )


def _same_steps(seen: Seen, by_step: Dict[Tuple[int, str], List[int]], last: int) -> bool:
    """Whether the last step does the same as the one before.

    It may not at another batch size: a batch of one needs no sums over the batch.
    """

    def operators(step: int) -> List[str]:
        return [seen.blocks[n].operator for phase in GROWING for n in by_step.get((step, phase), [])]

    return last < 2 or operators(last) == operators(last - 1)


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
    found: Tuple[Dict[int, Polynomial], Dict[int, Call]],
) -> None:
    """Give the blocks of two steps the size that both imply."""
    sizes, calls = found
    for mine, other in _matched(blocks, ours, theirs):
        a, b = blocks[mine], blocks[other]
        size = _growth(a, b, batches)
        sizes[mine] = size
        sizes[other] = size
        if a.call is not None and b.call is not None:
            calls[mine] = calls[other] = _grown(a.call, b.call, batches)


def _matched(blocks: Sequence[Block], ours: Sequence[int], theirs: Sequence[int]) -> List[Tuple[int, int]]:
    def keys(numbers: Sequence[int]) -> List[Tuple[str, str, int]]:
        return [(blocks[n].operator, blocks[n].module, len(blocks[n].shape)) for n in numbers]

    mine, other = keys(ours), keys(theirs)
    if mine == other:
        return list(zip(ours, theirs))
    # Steps that differ somewhere: pair equal operators of the same layer, first with first and so on.
    waiting: Dict[Tuple[str, str, int], List[int]] = {}
    for key, number in zip(reversed(other), reversed(theirs)):
        waiting.setdefault(key, []).append(number)
    return [(number, waiting[key].pop()) for key, number in zip(mine, ours) if waiting.get(key)]


def _grown(a: Call, b: Call, batches: Tuple[int, int]) -> Call:
    """A call whose numbers are polynomials of the batch."""

    def line(one: Polynomial, two: Polynomial) -> Polynomial:
        return _line(one[0], two[0], batches) or one

    if isinstance(a, Convolution) and isinstance(b, Convolution):
        return a._replace(batch=line(a.batch, b.batch))
    if isinstance(a, Reduction) and isinstance(b, Reduction):
        return a._replace(inputs=line(a.inputs, b.inputs), outputs=line(a.outputs, b.outputs))
    return a


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
    """start + slope · batch through two points, in integers."""
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


def torch_version() -> str:
    """The version that traces; one without CUDA says so, because jobs on a GPU run another build."""
    version = str(torch.__version__)
    return version if torch._C._has_cuda or "+" in version else f"{version}+cpu"


def precision_of(model: nn.Module, stated: str) -> str:
    """The precision that was asked for; "bf16" where the model's own weights mostly are."""
    if stated not in ("fp32", "tf32"):
        return stated
    sizes: CounterType[torch.dtype] = Counter()
    for parameter in model.parameters():
        sizes[parameter.dtype] += parameter.numel()
    most = sizes.most_common(1)
    return "bf16" if most and most[0][0] == torch.bfloat16 else stated
