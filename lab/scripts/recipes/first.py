"""Synthetic data of the first lists: digits, texts, pictures, graphs."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import struct
from pathlib import Path
from typing import Callable, Dict

from lab.scripts.recipes.files import images


def mnist(folder: Path, train: int = 1280, test: int = 320) -> None:
    """torchvision's MNIST, as it lies after a download: FOLDER/MNIST/raw."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("t10k", test)):
        random.seed(count)
        pixels = random.randbytes(count * 28 * 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + pixels)
        labels = bytes(index % 10 for index in range(count))
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels)


def whole_mnist(folder: Path) -> None:
    """As many images as the real one has, for scripts that split them by number."""
    mnist(folder, 60_000, 10_000)


def fashion(folder: Path) -> None:
    """The same for FashionMNIST."""
    mnist(folder)
    (folder / "MNIST").rename(folder / "FashionMNIST")


def words(path: Path, lines: int = 3000, kinds: int = 4000) -> None:
    """Lines of ten to thirty words."""
    random.seed(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "\n".join(
            " ".join(f"w{random.randrange(kinds)}" for _ in range(random.randrange(10, 30)))
            for _ in range(lines)
        )
    )


def wikitext(folder: Path) -> None:
    """train.txt, valid.txt and test.txt."""
    for name, lines in (("train", 4000), ("valid", 400), ("test", 400)):
        words(folder / f"{name}.txt", lines)


def letters(path: Path, count: int = 300_000) -> None:
    """Random characters of an alphabet of 96, the blank and the end of a line among them."""
    random.seed(count)
    path.parent.mkdir(parents=True, exist_ok=True)
    alphabet = "\n" + "".join(map(chr, range(32, 127)))
    path.write_text("".join(random.choices(alphabet, k=count)))


def tokens(folder: Path) -> None:
    """nanoGPT's train.bin, val.bin and meta.pkl."""
    random.seed(1)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "val"):
        (folder / f"{name}.bin").write_bytes(
            b"".join(struct.pack("<H", random.randrange(65)) for _ in range(200_000))
        )
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


def enwik8(path: Path) -> None:
    """A gzip of random bytes, as long as the scripts read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random.seed(8)
    data = bytes(random.choices(range(32, 127), k=1_000_000)) * 96
    path.write_bytes(gzip.compress(data, 1))


def image_classes(folder: Path) -> None:
    """Two classes of images, for ImageFolder: FOLDER/train/a, FOLDER/val/a, ..."""
    for part in ("train", "val"):
        for kind in ("a", "b"):
            images(folder / part / kind, 24)


def pairs(folder: Path) -> None:
    """Images side by side, for pix2pix: FOLDER/train, FOLDER/val, FOLDER/test."""
    from PIL import Image

    for part in ("train", "val", "test"):
        images(folder / part, 12)
        for path in (folder / part).iterdir():
            one = Image.open(path)
            both = Image.new("RGB", (512, 256))
            both.paste(one, (0, 0))
            both.paste(one, (256, 0))
            both.save(path)


def two_domains(folder: Path) -> None:
    """Unpaired images, for CycleGAN: FOLDER/train/A, FOLDER/train/B, FOLDER/test/A, FOLDER/test/B."""
    for part in ("train", "test"):
        for domain in ("A", "B"):
            images(folder / part / domain, 12)


def flat_images(folder: Path) -> None:
    """One folder of images."""
    images(folder)


def masks(folder: Path) -> None:
    """A black and white GIF for each image of `images`."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for index in range(48):
        Image.new("L", (256, 256), 255 * (index % 2)).save(folder / f"{index:04}_mask.gif")


def celeba(folder: Path) -> None:
    """One folder of images of faces' size."""
    images(folder, 64, 178)


def cora(folder: Path, papers: int = 2708, features: int = 1433) -> None:
    """A graph of citations: cora.content (a paper, its features, its class) and cora.cites."""
    random.seed(papers)
    folder.mkdir(parents=True, exist_ok=True)
    rows = (
        [str(paper), *random.choices("01", (98, 2), k=features), f"class{paper % 7}"]
        for paper in range(papers)
    )
    (folder / "cora.content").write_text("\n".join("\t".join(row) for row in rows))
    cites = (f"{random.randrange(papers)}\t{random.randrange(papers)}" for _ in range(5429))
    (folder / "cora.cites").write_text("\n".join(cites))


def sentence_pairs(path: Path) -> None:
    """Two sentences on a line, a tab between them."""
    words(path, 4000)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(f"{one}\t{other}" for one, other in zip(lines, lines[1:])))


def texts(path: Path) -> None:
    """JSON lines with a text each."""
    words(path, 3000)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(json.dumps({"text": " ".join(lines[at : at + 12])}) for at in range(2000)))


def conversations(path: Path) -> None:
    """JSON lines with a conversation each."""
    words(path, 3000)
    lines = path.read_text().splitlines()
    turns = (
        [{"role": role, "content": " ".join(lines[at : at + 6])} for role in ("user", "assistant")]
        for at in range(2000)
    )
    path.write_text("\n".join(json.dumps({"conversations": turn}) for turn in turns))


FIRST_RECIPES: Dict[str, Callable[[Path], None]] = {
    "mnist": mnist,
    "whole-mnist": whole_mnist,
    "fashion": fashion,
    "words": words,
    "wikitext": wikitext,
    "letters": letters,
    "tokens": tokens,
    "enwik8": enwik8,
    "image-classes": image_classes,
    "pairs": pairs,
    "two-domains": two_domains,
    "images": flat_images,
    "masks": masks,
    "celeba": celeba,
    "cora": cora,
    "sentence-pairs": sentence_pairs,
    "texts": texts,
    "conversations": conversations,
}
