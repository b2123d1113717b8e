"""PYTORCH_CUDA_ALLOC_CONF: what of it the allocator's simulation follows, and what it does not.

Read in PyTorch's sources (c10/core/AllocatorConfig.h, c10/cuda/CUDACachingAllocator.cpp).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import List, NamedTuple, Tuple

from slurm_gpumem.units import MIB

_LEAST_SPLIT_MIB = 21
"""PyTorch refuses max_split_size_mb up to the size of a large segment, 20 MiB."""
_ONLY_LOWER = {
    "garbage_collection_threshold": "it releases unused memory near a limit and can only lower the need",
}
_NO_MEMORY = ("pinned_use_background_threads", "pinned_use_cuda_host_register", "pinned_num_register_threads",
              "release_lock_on_cudamalloc", "graph_capture_record_stream_reuse")  # fmt: skip
"""Options that change no GPU memory."""


class AllocatorSettings(NamedTuple):
    """How the caching allocator is set."""

    expandable: bool = False
    """Segments grow instead of new ones being made."""
    max_split: int = 0
    """Bytes from which on blocks are not split; 0: all are."""
    notes: Tuple[str, ...] = ()
    """What is set and not simulated, in words."""

    @property
    def words(self) -> str:
        """What is simulated, in words; "" for the defaults."""
        found = ["expandable segments"] if self.expandable else []
        if self.max_split:
            found.append(f"blocks from {self.max_split // MIB} MiB on not split")
        return ", ".join(found)


DEFAULTS = AllocatorSettings()


@lru_cache(maxsize=64)
def allocator_settings(text: str) -> AllocatorSettings:
    """The settings of a variable's text; what makes no sense becomes a note, since PyTorch decides."""
    settings = DEFAULTS
    notes: List[str] = []
    # Commas stand between options and, in brackets, between sizes.
    for part in re.split(r",(?![^\[]*\])", text.replace(" ", "")):
        name, _, value = part.partition(":")
        if not name or name in _NO_MEMORY:
            continue
        if name == "expandable_segments" and value.lower() in ("true", "false"):
            settings = settings._replace(expandable=value.lower() == "true")
        elif name == "max_split_size_mb" and value.isdigit() and int(value) >= _LEAST_SPLIT_MIB:
            settings = settings._replace(max_split=int(value) * MIB)
        elif name == "backend" and value == "native":
            continue
        else:
            why = _ONLY_LOWER.get(name, "the estimate is that of the default")
            notes.append(f"the allocator's setting {part} is not simulated: {why}")
    return settings._replace(notes=tuple(notes))


def cublas_workspace_of(text: str) -> int:
    """Bytes of CUBLAS_WORKSPACE_CONFIG (":4096:8": eight of 4096 KiB); -1 where it is not one."""
    pairs = re.findall(r":(\d{1,9}):(\d{1,6})", text)
    return sum(int(size) * int(count) for size, count in pairs) * 1024 if pairs else -1
