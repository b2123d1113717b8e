"""Pictures of random colours, for data sets of images."""

from __future__ import annotations

import random
from pathlib import Path


def images(folder: Path, count: int = 48, size: int = 256) -> None:
    """JPEG files of random colours (needs Pillow)."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    random.seed(count)
    for index in range(count):
        small = Image.frombytes("RGB", (16, 16), random.randbytes(16 * 16 * 3))
        small.resize((size, size)).save(folder / f"{index:04}.jpg")
