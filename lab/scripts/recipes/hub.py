"""Data in the forms of Hugging Face's scripts: JSON lines, tables, captions."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any, Callable, Dict, Sequence

from lab.scripts.recipes.files import images
from lab.scripts.recipes.models import WORDS


def _sentence(low: int = 12, high: int = 40) -> str:
    return " ".join(f"w{random.randrange(WORDS)}" for _ in range(random.randrange(low, high)))


def _lines(path: Path, rows: Sequence[Dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def _splits(
    folder: Path,
    row: Callable[[int], Dict[str, Any]],
    train: int = 400,
    rest: int = 64,
    suffix: str = "jsonl",
) -> None:
    """train.jsonl, validation.jsonl and test.jsonl."""
    random.seed(train)
    for part, count in (("train", train), ("validation", rest), ("test", rest)):
        _lines(folder / f"{part}.{suffix}", [row(index) for index in range(count)])


def sentences_csv(folder: Path) -> None:
    """train.csv and dev.csv: two sentences and one of two labels."""
    random.seed(3)
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 400), ("dev", 64)):
        with open(folder / f"{part}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["sentence1", "sentence2", "label"])
            writer.writerows([_sentence(40, 80), _sentence(40, 80), index % 2] for index in range(count))


def endings_csv(folder: Path) -> None:
    """SWAG: train.csv and dev.csv with a beginning, four endings and the right one."""
    random.seed(4)
    folder.mkdir(parents=True, exist_ok=True)
    names = ["sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label"]
    for part, count in (("train", 300), ("dev", 48)):
        with open(folder / f"{part}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(names)
            writer.writerows([*(_sentence(10, 30) for _ in range(6)), index % 4] for index in range(count))


def sentence_pairs_split(folder: Path) -> None:
    """GLUE's MRPC: two sentences, a label, a number."""
    _splits(
        folder,
        lambda index: {"sentence1": _sentence(), "sentence2": _sentence(), "label": index % 2, "idx": index},
    )


def summaries(folder: Path) -> None:
    """A text and its summary."""
    _splits(
        folder, lambda index: {"text": _sentence(300, 500), "summary": _sentence(30, 60)}, 240, 24, "json"
    )


def questions(folder: Path) -> None:
    """SQuAD: a question, its context and the answer in it."""

    def row(index: int) -> Dict[str, Any]:
        context = _sentence(150, 250)
        answer = context.split()[7]
        found = {"text": [answer], "answer_start": [context.index(answer)]}
        return {"id": str(index), "question": _sentence(8, 16), "context": context, "answers": found}

    _splits(folder, row, 240, 32, "json")


def entities(folder: Path) -> None:
    """Words and their tags."""

    def row(index: int) -> Dict[str, Any]:
        found = _sentence(40, 90).split()
        return {"tokens": found, "ner_tags": [random.choice(["O", "B-X", "I-X", "B-Y"]) for _ in found]}

    _splits(folder, row, 300, 48, "json")


def plain_texts(folder: Path) -> None:
    """A text a line."""
    _splits(folder, lambda index: {"text": _sentence(150, 400)}, 320, 32)


def preferences(folder: Path) -> None:
    """A prompt, the answer that was chosen and the one that was not."""
    _splits(
        folder,
        lambda index: {"prompt": _sentence(), "chosen": _sentence(60, 160), "rejected": _sentence(60, 160)},
        160,
        16,
    )


def instructions(folder: Path) -> None:
    """Alpaca: an instruction, an input and the answer."""
    _splits(
        folder,
        lambda index: {"instruction": _sentence(), "input": _sentence(), "output": _sentence(60, 160)},
        160,
        16,
    )


def sounds(folder: Path) -> None:
    """Names of sounds (their content is noise), a label and a sentence of letters."""
    _splits(
        folder,
        lambda index: {"audio": f"{index}.wav", "label": index % 4, "text": " ".join("abcdefghij"[:6])},
        160,
        32,
    )


def captions(folder: Path) -> None:
    """Images and captions: train.jsonl, validation.jsonl, test.jsonl with image_path and caption."""
    images(folder / "pictures", 48, 224)
    paths = sorted(str(path.resolve()) for path in (folder / "pictures").iterdir())
    _splits(folder, lambda index: {"image_path": paths[index % 48], "caption": _sentence(8, 16)}, 160, 32)


def captioned_images(folder: Path, size: int = 256) -> None:
    """A folder of images with metadata.jsonl: file_name, text and an image to be guided by."""
    images(folder, 32, size)
    names = sorted(path.name for path in folder.iterdir())
    random.seed(8)
    _lines(
        folder / "metadata.jsonl",
        [{"file_name": name, "text": _sentence(6, 12), "conditioning_image": name} for name in names],
    )


HUB_RECIPES: Dict[str, Callable[[Path], None]] = {
    "sentences-csv": sentences_csv,
    "endings-csv": endings_csv,
    "mrpc": sentence_pairs_split,
    "summaries": summaries,
    "questions": questions,
    "entities": entities,
    "plain-texts": plain_texts,
    "preferences": preferences,
    "instructions": instructions,
    "sounds": sounds,
    "captions": captions,
    "captioned-images": captioned_images,
}
