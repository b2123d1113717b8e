"""Synthetic data of the third list beside the hub's: shapes, ratings, tokens."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Callable, Dict

from lab.scripts.recipes.files import images


def token_shards(folder: Path, shards: int = 3) -> None:
    """data00.bin, ... of 16-bit tokens below 32,000."""
    folder.mkdir(parents=True, exist_ok=True)
    random.seed(shards)
    for number in range(shards):
        tokens = (random.randrange(32_000) for _ in range(150_000))
        (folder / f"data{number:02}.bin").write_bytes(b"".join(struct.pack("<H", one) for one in tokens))


def ratings(path: Path, count: int = 60_000) -> None:
    """MovieLens 1M: user::item::rating::time, users and items from 1."""
    random.seed(count)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (
        f"{random.randrange(1, 6041)}::{random.randrange(1, 3953)}::{random.randrange(1, 6)}::9"
        for _ in range(count)
    )
    path.write_text("\n".join(rows) + "\n")


def shapes(folder: Path) -> None:
    """ShapeNet's parts: points and their segments as text, four categories, the lists of the splits."""
    random.seed(16)
    names = ["Airplane", "Bag", "Cap", "Car"]
    lists: Dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for number, _ in enumerate(names):
        category = folder / f"0{number}"
        for part in ("points", "points_label"):
            (category / part).mkdir(parents=True, exist_ok=True)
        for index in range(24):
            rows = (" ".join(f"{random.random():.4f}" for _ in range(3)) for _ in range(600))
            (category / "points" / f"s{index}.pts").write_text("\n".join(rows) + "\n")
            (category / "points_label" / f"s{index}.seg").write_text("1\n2\n" * 300)
            lists["test" if index % 4 == 0 else "train"].append(f"shape_data/0{number}/s{index}")
    kinds = "".join(f"{name}\t0{number}\n" for number, name in enumerate(names))
    (folder / "synsetoffset2category.txt").write_text(kinds)
    (folder / "train_test_split").mkdir(exist_ok=True)
    for part, files in lists.items():
        (folder / "train_test_split" / f"shuffled_{part}_file_list.json").write_text(json.dumps(files))


def ten_classes(folder: Path) -> None:
    """Ten classes of images, for scripts that look at the best five: FOLDER/train/k0, FOLDER/val/k0, ..."""
    for part, count in (("train", 8), ("val", 4)):
        for kind in range(10):
            images(folder / part / f"k{kind}", count)


def four_folders(folder: Path) -> None:
    """Unpaired images: trainA, trainB, testA, testB."""
    for part in ("trainA", "trainB", "testA", "testB"):
        images(folder / part, 12)


THIRD_RECIPES: Dict[str, Callable[[Path], None]] = {
    "token-shards": token_shards,
    "ratings": ratings,
    "shapes": shapes,
    "ten-classes": ten_classes,
    "four-folders": four_folders,
}
