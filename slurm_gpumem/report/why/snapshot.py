"""A traced step for PyTorch's own memory viewer (pytorch.org/memory_viz).

The viewer opens what `torch.cuda.memory._dump_snapshot` writes: a pickle. Ours holds lists, words and numbers
only, and nobody here reads one.
"""

from __future__ import annotations

import pickle
from typing import Dict, List

from slurm_gpumem.estimators.allocator.allocator import FREE, ROUNDING
from slurm_gpumem.estimators.traced.replay import allocator_events
from slurm_gpumem.estimators.types import Gpu
from slurm_gpumem.summaries.trace_types import Trace

_PROTOCOL = 4
"""The viewer's own reader knows no later one."""


def snapshot_file(trace: Trace, batch: int, gpu: Gpu) -> bytes:
    """The file's content: every allocation and release of the traced steps, in order."""
    entries: List[Dict[str, object]] = []
    blocks: List[Dict[str, object]] = []
    address = 0
    for at, (value, (_, size)) in enumerate(zip(trace.events, allocator_events(trace, batch, gpu))):
        if size == FREE:
            for action in ("free_requested", "free_completed"):
                entries.append({**blocks[value], "action": action, "time_us": at})
            continue
        site, phase = trace.sites[value], trace.phase_of(at)
        made_by = {
            "name": f"{site.operator} ({phase.name}, step {phase.step})",
            "filename": site.module,
            "line": 0,
        }
        rounded = -(-size // ROUNDING) * ROUNDING
        # No address is used twice: where blocks lie is the allocator's affair, and not drawn.
        block = {
            "addr": address,
            "size": rounded,
            "stream": 0,
            "frames": [made_by],
            "category": site.category,
        }
        address += rounded
        blocks.append(block)
        entries.append({**block, "action": "alloc", "time_us": at})
    return pickle.dumps({"segments": [], "device_traces": [entries]}, protocol=_PROTOCOL)
