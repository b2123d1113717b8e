"""What would fit: the largest batch for a given memory."""

from __future__ import annotations

from typing import Callable, Optional


def largest_batch(peak_mib: Callable[[int], int], limit_mib: int, *, at_most: int) -> Optional[int]:
    """The largest batch up to `at_most` whose peak is within the limit; None when not even 1 is.

    `peak_mib` gives the peak of a batch size; it is taken to grow with it.
    """
    if peak_mib(1) > limit_mib:
        return None
    fits, too_big = 1, at_most + 1
    while too_big - fits > 1:
        middle = (fits + too_big) // 2
        if peak_mib(middle) <= limit_mib:
            fits = middle
        else:
            too_big = middle
    return fits
