"""What recipes of synthetic data have at hand; a recipe is a short program, kept with the lists.

    python recipe_tools.py PATH < PROGRAM

`path` and `folder` are where the script looks for its data: files there have the right form and random
content. Run by the Python of the scripts' environment, which has Pillow, NumPy, h5py and what else they need.
"""

from __future__ import annotations

import csv  # noqa: F401 - for programs, as all that this file imports
import gzip  # noqa: F401
import importlib
import json
import math  # noqa: F401
import pickle  # noqa: F401
import random
import struct
import sys
import wave  # noqa: F401
from pathlib import Path
from typing import Any, Callable, Dict, Sequence

WORDS = 4000
"""Words that the tokenizer knows: w0 to w3999."""
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>"]
_CHAT = (
    "{% for message in messages %}<s> {{ message['role'] }} {{ message['content'] }} </s>{% endfor %}"
    "{% if add_generation_prompt %}<s> assistant {% endif %}"
)


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


def sentence(low: int = 12, high: int = 40) -> str:
    """This number of words that the tokenizer knows."""
    return " ".join(f"w{random.randrange(WORDS)}" for _ in range(random.randrange(low, high)))


def write_lines(path: Path, rows: Sequence[Dict[str, Any]]) -> None:
    """A JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def splits(
    folder: Path,
    row: Callable[[int], Dict[str, Any]],
    train: int = 400,
    rest: int = 64,
    suffix: str = "jsonl",
) -> None:
    """train.jsonl, validation.jsonl and test.jsonl."""
    random.seed(train)
    for part, count in (("train", train), ("validation", rest), ("test", rest)):
        write_lines(folder / f"{part}.{suffix}", [row(index) for index in range(count)])


def edit(path: Path, *changes: Sequence[str]) -> None:
    """Settings that a script keeps in its source, and names that today's packages no longer have."""
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        if old not in text:
            raise SystemExit(f"{path} has no {old!r}")
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def tokenizer(folder: Path, length: int = 1024) -> None:
    """A word is a token: w0 to w3999, the letters, the roles of a talk."""
    tokenizers: Any = importlib.import_module("tokenizers")
    transformers: Any = importlib.import_module("transformers")
    others = [*"abcdefghijklmnopqrstuvwxyz", "|", "user", "assistant", "system"]
    names = [*_SPECIAL, *others, *(f"w{number}" for number in range(WORDS))]
    vocabulary = {name: number for number, name in enumerate(names)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=length,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        bos_token="<s>",
        eos_token="</s>",
    )
    fast.chat_template = _CHAT
    fast.save_pretrained(str(folder))


def model(folder: Path, name: str, config: str, sizes: Dict[str, Any]) -> None:
    """A folder with a transformers model of random weights, its configuration and its tokenizer."""
    transformers: Any = importlib.import_module("transformers")
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(0)
    made = getattr(transformers, config)(**sizes)
    getattr(transformers, name)(made).save_pretrained(str(folder))
    tokenizer(folder)


def processor(folder: Path, name: str, **sizes: Any) -> None:
    """The processor of images or sounds beside a model."""
    transformers: Any = importlib.import_module("transformers")
    getattr(transformers, name)(**sizes).save_pretrained(str(folder))


if __name__ == "__main__":
    path = folder = Path(sys.argv[1])
    exec(compile(sys.stdin.read(), "recipe", "exec"))
