"""What recipes share: pictures of random colours, and NumPy with a source of numbers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any


def images(folder: Path, count: int = 48, size: int = 256) -> None:
    """JPEG files of random colours (needs Pillow)."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    random.seed(count)
    for index in range(count):
        small = Image.frombytes("RGB", (16, 16), random.randbytes(16 * 16 * 3))
        small.resize((size, size)).save(folder / f"{index:04}.jpg")


def numpy_and_draw(seed: int) -> Any:
    """NumPy, which only some recipes need, and its generator of random numbers."""
    import numpy

    return numpy, numpy.random.default_rng(seed)
