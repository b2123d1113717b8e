"""Synthetic data of the fourth list: PASCAL VOC, downloaded weights, distances to shapes, patches, tokens."""

from __future__ import annotations

import importlib
import json
import random
import struct
from pathlib import Path
from typing import Any, Callable, Dict

from lab.scripts.recipes.files import images

_OBJECT = (
    "<object><name>{name}</name><pose>Left</pose><truncated>0</truncated><difficult>0</difficult>"
    "<bndbox><xmin>{x}</xmin><ymin>{y}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
)
_WEIGHTS = {
    "fasterrcnn_resnet50_fpn_coco": ("detection.fasterrcnn_resnet50_fpn", {"weights_backbone": None}),
    "vgg16_features": ("vgg16", {}),
}
"""Names of files of weights that are not those of their models."""


def voc(folder: Path, count: int = 32) -> None:
    """PASCAL VOC: JPEGImages, SegmentationClass, Annotations, ImageSets."""
    from PIL import Image

    random.seed(count)
    images(folder / "JPEGImages", count, 500)
    names = sorted(path.stem for path in (folder / "JPEGImages").iterdir())
    for part in ("SegmentationClass", "SegmentationObject", "Annotations"):
        (folder / part).mkdir(exist_ok=True)
    for name in names:
        mask = Image.new("L", (500, 500), 0)
        boxes = []
        for kind in ("person", "dog", "car"):
            x, y = random.randrange(10, 250), random.randrange(10, 250)
            right, bottom = x + random.randrange(60, 240), y + random.randrange(60, 240)
            mask.paste(random.randrange(1, 21), (x, y, right, bottom))
            boxes.append(_OBJECT.format(name=kind, x=x, y=y, right=right, bottom=bottom))
        for part in ("SegmentationClass", "SegmentationObject"):
            mask.save(folder / part / f"{name}.png")
        size = "<size><width>500</width><height>500</height><depth>3</depth></size>"
        text = f"<annotation><filename>{name}.jpg</filename>{size}{''.join(boxes)}</annotation>"
        (folder / "Annotations" / f"{name}.xml").write_text(text)
    for kind in ("Segmentation", "Main"):
        where = folder / "ImageSets" / kind
        where.mkdir(parents=True, exist_ok=True)
        test = count // 4
        parts = {"train": names[test:], "val": names[:test], "test": names[:test], "trainval": names}
        for part, listed in parts.items():
            (where / f"{part}.txt").write_text("\n".join(listed) + "\n")


def hub_weights(path: Path) -> None:
    """Random weights of the torchvision model that a downloaded file is named after: vgg16-397923af.pth."""
    torch: Any = importlib.import_module("torch")
    models: Any = importlib.import_module("torchvision.models")
    path.parent.mkdir(parents=True, exist_ok=True)
    stem = path.stem.rsplit("-", 1)[0]
    name, others = _WEIGHTS.get(stem, (stem, {}))
    made = models
    for part in name.split("."):
        made = getattr(made, part)
    torch.manual_seed(0)
    torch.save(made(weights=None, **others).state_dict(), path)


def boxes_as_json(folder: Path, count: int = 64) -> None:
    """Images with boxes as JSON: TRAIN_images.json, TRAIN_objects.json, TEST_..., label_map.json."""
    random.seed(count)
    images(folder / "pictures", count, 500)
    paths = sorted(str(path.resolve()) for path in (folder / "pictures").iterdir())
    found = []
    for _ in paths:
        corners = [(random.randrange(250), random.randrange(250)) for _ in range(3)]
        boxes = [[x, y, x + random.randrange(60, 240), y + random.randrange(60, 240)] for x, y in corners]
        labels = [random.randrange(1, 21) for _ in boxes]
        found.append({"boxes": boxes, "labels": labels, "difficulties": [0 for _ in boxes]})
    for part in ("TRAIN", "TEST"):
        (folder / f"{part}_images.json").write_text(json.dumps(paths))
        (folder / f"{part}_objects.json").write_text(json.dumps(found))
    (folder / "label_map.json").write_text(json.dumps({f"kind{n}": n for n in range(21)}))


def distances(folder: Path, shapes: int = 64) -> None:
    """DeepSDF: FOLDER/SdfSamples/made/chair/n.npz of points and distances; FOLDER/split.json lists them."""
    import numpy

    draw = numpy.random.default_rng(shapes)
    where = folder / "SdfSamples" / "made" / "chair"
    where.mkdir(parents=True, exist_ok=True)
    for number in range(shapes):
        outside, inside = (draw.random((20_000, 4), dtype="float32") for _ in range(2))
        numpy.savez(where / f"{number}.npz", pos=outside, neg=-inside)
    listed = {"made": {"chair": [str(number) for number in range(shapes)]}}
    (folder / "split.json").write_text(json.dumps(listed))


def distances_settings(path: Path) -> None:
    """Another list of shapes and earlier checkpoints in DeepSDF's settings, which lie there already."""
    settings = json.loads(path.read_text())
    settings.update(TrainSplit="data/split.json", TestSplit="data/split.json", DataLoaderThreads=4)
    settings.update(SnapshotFrequency=4, AdditionalSnapshots=[2], Description="made shapes")
    path.write_text(json.dumps(settings))


def patches(folder: Path) -> None:
    """HDF5 files of small and large images: train.h5 of patches, eval.h5 of whole ones."""
    import numpy

    h5py: Any = importlib.import_module("h5py")
    draw = numpy.random.default_rng(33)
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / "train.h5", "w") as file:
        for name in ("lr", "hr"):
            file[name] = draw.random((40_000, 33, 33), dtype="float32") * 255
    with h5py.File(folder / "eval.h5", "w") as file:
        for name in ("lr", "hr"):
            for number in range(5):
                file[f"{name}/{number}"] = draw.random((480, 480), dtype="float32") * 255


def n_bodies(folder: Path) -> None:
    """Five charged bodies: loc_, vel_, edges_ and charges_ of train, valid and test."""
    import numpy

    draw = numpy.random.default_rng(5)
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 3000), ("valid", 1000), ("test", 1000)):
        shapes = {"loc": (49, 3, 5), "vel": (49, 3, 5), "edges": (5, 5), "charges": (5, 1)}
        for name, shape in shapes.items():
            numpy.save(
                folder / f"{name}_{part}_charged5_initvel1small.npy",
                draw.normal(size=(count, *shape)).astype("float32"),
            )


def translations(folder: Path) -> None:
    """Sentences in two languages: train.jsonl of {"translation": {"en": ..., "it": ...}}."""
    random.seed(2)
    folder.mkdir(parents=True, exist_ok=True)

    def sentence() -> str:
        return " ".join(f"w{random.randrange(4000)}" for _ in range(random.randrange(8, 40)))

    rows = ({"translation": {"en": sentence(), "it": sentence()}} for _ in range(3000))
    (folder / "train.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def headed_tokens(path: Path, count: int = 600_000) -> None:
    """Tokens of 16 bits below 50,257, after a head of 256 numbers."""
    random.seed(count)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack("<3i", 20240520, 1, count) + bytes(4 * 253)
    values = random.choices(range(50_257), k=count)
    path.write_bytes(head + struct.pack(f"<{count}H", *values))


def small_images(folder: Path, count: int = 512, size: int = 64) -> None:
    """PNG files of 64 x 64."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    random.seed(count)
    for index in range(count):
        pixels = random.randbytes(8 * 8 * 3)
        Image.frombytes("RGB", (8, 8), pixels).resize((size, size)).save(folder / f"{index:04}.png")


def image_autoencoder(folder: Path) -> None:
    """The autoencoder of Stable Diffusion in its own size, with random weights."""
    diffusers: Any = importlib.import_module("diffusers")
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(0)
    diffusers.AutoencoderKL(
        block_out_channels=[128, 256, 512, 512],
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        layers_per_block=2,
        latent_channels=4,
    ).save_pretrained(str(folder))


FOURTH_RECIPES: Dict[str, Callable[[Path], None]] = {
    "voc": voc,
    "hub-weights": hub_weights,
    "boxes-as-json": boxes_as_json,
    "distances": distances,
    "deepsdf-specs": distances_settings,
    "patches": patches,
    "n-bodies": n_bodies,
    "translations": translations,
    "headed-tokens": headed_tokens,
    "small-images": small_images,
    "image-autoencoder": image_autoencoder,
}
