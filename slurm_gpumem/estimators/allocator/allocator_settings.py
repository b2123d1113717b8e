"""PYTORCH_CUDA_ALLOC_CONF: what of it the allocator's simulation follows, and what it does not.

Read in PyTorch's sources (c10/core/AllocatorConfig.h, c10/cuda/CUDACachingAllocator.cpp).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import List, NamedTuple, Optional, Tuple

from slurm_gpumem.units import MIB

_INTERVALS = 16
"""Rounding is set for sizes from 1 MiB on by powers of two; the last holds for all above."""
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
    roundup: Tuple[int, ...] = ()
    """Divisions of each power of two that sizes are rounded up to, from 1 MiB on; empty: multiples of 512."""
    notes: Tuple[str, ...] = ()
    """What is set and not simulated, in words."""

    @property
    def words(self) -> str:
        """What is simulated, in words; "" for the defaults."""
        found = ["expandable segments"] if self.expandable else []
        if self.max_split:
            found.append(f"blocks from {self.max_split // MIB} MiB on not split")
        if self.roundup:
            found.append("sizes rounded up to parts of powers of two")
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
        elif name == "roundup_power2_divisions" and _divisions(value) is not None:
            settings = settings._replace(roundup=_divisions(value) or ())
        elif name == "backend" and value == "native":
            continue
        else:
            why = _ONLY_LOWER.get(name, "the estimate is that of the default")
            notes.append(f"the allocator's setting {part} is not simulated: {why}")
    return settings._replace(notes=tuple(notes))


def _divisions(value: str) -> Optional[Tuple[int, ...]]:
    """Divisions by interval of "4" or "[256:1,512:2,1024:4,>:8]"; None where it is neither."""
    if value.isdigit():
        return (int(value),) * _INTERVALS if _is_power(int(value)) else None
    if not re.fullmatch(r"\[(?:(?:\d+|>):\d+,?)+\]", value):
        return None
    found = [0] * _INTERVALS
    last = 0
    for number, (size, count) in enumerate(re.findall(r"(\d+|>):(\d+)", value)):
        if not _is_power(int(count)) or (size != ">" and not _is_power(int(size))):
            return None
        if size == ">":
            found[last:] = [int(count)] * (_INTERVALS - last)
            continue
        index = int(size).bit_length() - 1
        if number == 0:
            found[:index] = [int(count)] * len(found[:index])
        if index < _INTERVALS:
            found[index] = int(count)
        last = min(index, _INTERVALS - 1)
    return tuple(found)


def _is_power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def rounded_up(size: int, roundup: Tuple[int, ...]) -> int:
    """Bytes that a request takes under roundup_power2_divisions, before they become multiples of 512."""
    interval = min(max(0, size.bit_length() - 1 - 20), _INTERVALS - 1)
    divisions = roundup[interval]
    if divisions <= 1 or size <= 512 * divisions or _is_power(size):
        return size
    step = (1 << (size.bit_length() - 1)) // divisions
    return -(-size // step) * step


def cublas_workspace_of(text: str) -> int:
    """Bytes of CUBLAS_WORKSPACE_CONFIG (":4096:8": eight of 4096 KiB); -1 where it is not one."""
    pairs = re.findall(r":(\d{1,9}):(\d{1,6})", text)
    return sum(int(size) * int(count) for size, count in pairs) * 1024 if pairs else -1
