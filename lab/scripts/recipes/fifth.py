"""Synthetic data of the fifth list: voices, words as pictures, poses, depths, volumes, ratings, plays."""

from __future__ import annotations

import importlib
import json
import pickle
import random
import wave
from pathlib import Path
from typing import Any, Callable, Dict, List

from lab.scripts.recipes.files import images, numpy_and_draw


def mixtures(folder: Path, count: int = 24, rate: int = 8000) -> None:
    """Two voices and their sum: tr and cv with mix.json, s1.json, s2.json of [path, samples]."""
    random.seed(count)
    for part in ("tr", "cv"):
        for voice in ("mix", "s1", "s2"):
            where = folder / part / voice
            where.mkdir(parents=True, exist_ok=True)
            listed = []
            for number in range(count):
                samples = 5 * rate
                path = (where / f"{number:03}.wav").resolve()
                with wave.open(str(path), "wb") as file:
                    file.setnchannels(1)
                    file.setsampwidth(2)
                    file.setframerate(rate)
                    file.writeframes(random.randbytes(2 * samples))
                listed.append([str(path), samples])
            (folder / part / f"{voice}.json").write_text(json.dumps(listed))


def words_as_pictures(folder: Path, count: int = 1600) -> None:
    """Synth90k: lexicon.txt, annotation_train.txt, _val, _test of "path index", and small JPEG files."""
    from PIL import Image

    random.seed(count)
    folder.mkdir(parents=True, exist_ok=True)
    words = [
        "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randrange(3, 9))) for _ in range(90)
    ]
    (folder / "lexicon.txt").write_text("\n".join(words) + "\n")
    Image.new("RGB", (100, 32), (90, 90, 90)).save(folder / "word.jpg")
    for part, rows in (("train", count), ("val", count // 2), ("test", count // 2)):
        lines = (f"./word.jpg {random.randrange(len(words))}" for _ in range(rows))
        (folder / f"annotation_{part}.txt").write_text("\n".join(lines) + "\n")


def filmed_poses(folder: Path, frames: int = 1200) -> None:
    """Human3.6M as films: data_3d_h36m.npz of 32 joints, data_2d_h36m_gt.npz of 17 for four cameras."""
    numpy, draw = numpy_and_draw(17)
    folder.mkdir(parents=True, exist_ok=True)
    people = ("S1", "S5", "S6", "S7", "S8", "S9", "S11")
    body = {one: {"Walking": draw.normal(size=(frames, 32, 3)).astype("float32")} for one in people}
    seen = {
        one: {"Walking": [draw.normal(size=(frames, 17, 2)).astype("float32") for _ in range(4)]}
        for one in people
    }
    sides = [[4, 5, 6, 11, 12, 13], [1, 2, 3, 14, 15, 16]]
    numpy.savez(folder / "data_3d_h36m.npz", positions_3d=numpy.array(body, dtype=object))
    about = {"num_joints": 17, "keypoints_symmetry": sides, "layout_name": "h36m"}
    numpy.savez(
        folder / "data_2d_h36m_gt.npz",
        positions_2d=numpy.array(seen, dtype=object),
        metadata=numpy.array(about, dtype=object),
    )


def depths(folder: Path, count: int = 24) -> None:
    """NYU Depth as HDF5: train/room/n.h5 and val/room/n.h5 with `rgb` and `depth` of 480 x 640."""
    h5py: Any = importlib.import_module("h5py")
    _, draw = numpy_and_draw(480)
    for part in ("train", "val"):
        where = folder / part / "room"
        where.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            with h5py.File(where / f"{number:05}.h5", "w") as file:
                file["rgb"] = draw.integers(0, 256, (3, 480, 640), dtype="uint8")
                file["depth"] = draw.random((480, 640), dtype="float32") * 10


def drives(folder: Path, count: int = 40) -> None:
    """KITTI's drives: drives/day/one/image_02/data/*.jpg, and splits/eigen_zhou that lists them."""
    from PIL import Image

    random.seed(count)
    where = folder / "drives" / "day" / "one" / "image_02" / "data"
    where.mkdir(parents=True, exist_ok=True)
    for number in range(count + 2):
        small = Image.frombytes("RGB", (31, 9), random.randbytes(31 * 9 * 3))
        small.resize((1242, 375)).save(where / f"{number:010}.jpg")
    lists = folder / "splits" / "eigen_zhou"
    lists.mkdir(parents=True, exist_ok=True)
    for part in ("train", "val"):
        lines = (f"day/one {number} l" for number in range(1, count + 1))
        (lists / f"{part}_files.txt").write_text("\n".join(lines) + "\n")


_VOLUMES = """\
device: cuda
model: {name: UNet3D, in_channels: 1, out_channels: 2, layer_order: gcr, f_maps: 32, final_sigmoid: false}
loss: {name: CrossEntropyLoss}
optimizer: {learning_rate: 0.0002, weight_decay: 0.00001}
eval_metric: {name: MeanIoU}
lr_scheduler: {name: MultiStepLR, milestones: [5], gamma: 0.5}
trainer:
  checkpoint_dir: run
  resume: null
  pre_trained: null
  validate_after_iters: 10
  log_after_iters: 10
  max_num_epochs: 3
  max_num_iterations: 60
  eval_score_higher_is_better: true
loaders:
  dataset: StandardHDF5Dataset
  batch_size: 2
  num_workers: 2
  raw_internal_path: raw
  label_internal_path: label
  global_normalization: false
"""
_PART = """\
  {part}:
    file_paths: [volumes/{part}.h5]
    slice_builder: {{name: SliceBuilder, patch_shape: [48, 96, 96], stride_shape: [24, 48, 48]}}
    transformer:
      raw: [{{name: Standardize}}, {{name: ToTensor, expand_dims: true}}]
      label: [{{name: ToTensor, expand_dims: false, dtype: int64}}]
"""


def volumes(folder: Path) -> None:
    """HDF5 volumes with labels, train.h5 and val.h5, and settings.yml of a 3D U-Net beside the folder."""
    h5py: Any = importlib.import_module("h5py")
    _, draw = numpy_and_draw(3)
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "val"):
        with h5py.File(folder / f"{part}.h5", "w") as file:
            file["raw"] = draw.random((72, 192, 192), dtype="float32")
            file["label"] = draw.integers(0, 2, (72, 192, 192), dtype="int64")
    text = _VOLUMES + "".join(_PART.format(part=part) for part in ("train", "val"))
    (folder.parent / "settings.yml").write_text(text)


def rated_items(folder: Path, users: int = 400, items: int = 1500) -> None:
    """NCF's MovieLens: ml-1m.train.rating, ml-1m.test.rating, ml-1m.test.negative."""
    random.seed(users)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f"{user}\t{random.randrange(items)}\t4\t97" for user in range(users) for _ in range(30)]
    rows.append(f"{users - 1}\t{items - 1}\t4\t97")
    (folder / "ml-1m.train.rating").write_text("\n".join(rows) + "\n")
    (folder / "ml-1m.test.rating").write_text("\n".join(f"{user}\t1\t4\t97" for user in range(users)) + "\n")
    lines = (
        "\t".join([f"({user},{random.randrange(items)})", *(str(random.randrange(items)) for _ in range(99))])
        for user in range(users)
    )
    (folder / "ml-1m.test.negative").write_text("\n".join(lines) + "\n")


def movielens(folder: Path, users: int = 600, items: int = 3000) -> None:
    """MovieLens 1M as it is unpacked: ratings.dat, movies.dat, users.dat, README."""
    random.seed(users)
    folder.mkdir(parents=True, exist_ok=True)
    rows = (
        f"{user}::{random.randrange(1, items)}::{random.randrange(1, 6)}::{97_000_000 + number}"
        for user in range(1, users)
        for number in range(40)
    )
    (folder / "ratings.dat").write_text("\n".join(rows) + "\n")
    for name in ("README", "movies.dat", "users.dat"):
        (folder / name).write_text("made\n")


def rollouts(folder: Path, count: int = 640) -> None:
    """Plays of a race: FOLDER/thread_0/n.npz of 64 x 64 observations, actions, rewards, terminals."""
    numpy, draw = numpy_and_draw(64)
    where = folder / "thread_0"
    where.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        steps = 40 if number < 40 else 34
        numpy.savez(
            where / f"rollout_{number}.npz",
            observations=draw.integers(0, 256, (steps, 64, 64, 3), dtype="uint8"),
            actions=draw.random((steps, 3), dtype="float32"),
            rewards=draw.random(steps, dtype="float32"),
            terminals=numpy.arange(steps) == steps - 1,
        )


def electricity(path: Path, rows: int = 3000, columns: int = 321) -> None:
    """Numbers with commas between them, a line an hour."""
    numpy, draw = numpy_and_draw(columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    numpy.savetxt(path, draw.random((rows, columns)), fmt="%.3f", delimiter=",")


def captions(folder: Path, count: int = 80) -> None:
    """Images as HDF5 with five captions each: TRAIN_IMAGES_, TRAIN_CAPTIONS_, TRAIN_CAPLENS_, WORDMAP_."""
    h5py: Any = importlib.import_module("h5py")
    _, draw = numpy_and_draw(count)
    random.seed(count)
    folder.mkdir(parents=True, exist_ok=True)
    name = "coco_5_cap_per_img_5_min_word_freq"
    known = 4000
    words = {f"w{number}": number for number in range(1, known)}
    words.update({"<unk>": known, "<start>": known + 1, "<end>": known + 2, "<pad>": 0})
    (folder / f"WORDMAP_{name}.json").write_text(json.dumps(words))
    for part in ("TRAIN", "VAL", "TEST"):
        with h5py.File(folder / f"{part}_IMAGES_{name}.hdf5", "w") as file:
            file.attrs["captions_per_image"] = 5
            file["images"] = draw.integers(0, 256, (count, 3, 256, 256), dtype="uint8")
        lines: List[List[int]] = []
        lengths = []
        for _ in range(5 * count):
            inner = [random.randrange(1, known) for _ in range(random.randrange(8, 40))]
            lengths.append(len(inner) + 2)
            lines.append([known + 1, *inner, known + 2, *[0] * (50 - len(inner))])
        (folder / f"{part}_CAPTIONS_{name}.json").write_text(json.dumps(lines))
        (folder / f"{part}_CAPLENS_{name}.json").write_text(json.dumps(lengths))


def few_shot_by_name(folder: Path) -> None:
    """miniImageNet, the class of nine letters in the file name: images/, train.csv, val.csv, test.csv."""
    images(folder / "images", 1, 84)
    one = (folder / "images" / "0000.jpg").read_bytes()
    for first, part, classes in ((0, "train", 40), (100, "val", 8), (200, "test", 8)):
        rows = [(f"n{first + kind:08}", number) for kind in range(classes) for number in range(24)]
        for kind, number in rows:
            (folder / "images" / f"{kind}{number:08}.jpg").write_bytes(one)
        lines = ["filename,label", *(f"{kind}{number:08}.jpg,{kind}" for kind, number in rows)]
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")


def news(folder: Path) -> None:
    """Titles and classes, a tab between them: train.txt, dev.txt, test.txt."""
    random.seed(10)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.pkl").unlink(missing_ok=True)
    for part, count in (("train", 9000), ("dev", 1000), ("test", 1000)):
        titles = ("".join(chr(0x4E00 + random.randrange(3000)) for _ in range(20)) for _ in range(count))
        lines = (f"{title}\t{number % 10}" for number, title in enumerate(titles))
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def speech_and_face(folder: Path, count: int = 240) -> None:
    """MOSEI's features without alignment: mosei_senti_data_noalign.pkl of text, audio, vision and labels."""
    numpy, draw = numpy_and_draw(count)
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"text": (50, 300), "audio": (500, 74), "vision": (500, 35), "labels": (1, 1)}
    made = {}
    for part, rows in (("train", count), ("valid", count // 4), ("test", count // 4)):
        made[part] = {name: draw.normal(size=(rows, *size)).astype("float32") for name, size in sizes.items()}
        made[part]["id"] = numpy.array([[f"film{row}", "0", "1"] for row in range(rows)])
    (folder / "mosei_senti_data_noalign.pkl").write_bytes(pickle.dumps(made))


def roads(folder: Path, sensors: int = 307) -> None:
    """PEMS04: PEMS04.npz of three values a sensor and distance.csv of their neighbours."""
    numpy, draw = numpy_and_draw(sensors)
    folder.mkdir(parents=True, exist_ok=True)
    numpy.savez(folder / "PEMS04.npz", data=draw.random((900, sensors, 3)))
    rows = (f"{one},{(one + step) % sensors},{10.5 * step}" for one in range(sensors) for step in (1, 7))
    (folder / "distance.csv").write_text("from,to,cost\n" + "\n".join(rows) + "\n")


def citations(folder: Path, nodes: int = 2708, features: int = 1433) -> None:
    """Cora in three pickles: node_features.csr, node_labels.npy, adjacency_list.dict."""
    from scipy import sparse

    numpy, draw = numpy_and_draw(nodes)
    folder.mkdir(parents=True, exist_ok=True)
    made = sparse.csr_matrix((draw.random((nodes, features)) < 0.02).astype("float32"))
    near = {node: [int(one) for one in draw.integers(0, nodes, 2)] for node in range(nodes)}
    (folder / "node_features.csr").write_bytes(pickle.dumps(made))
    (folder / "node_labels.npy").write_bytes(pickle.dumps(numpy.arange(nodes) % 7))
    (folder / "adjacency_list.dict").write_bytes(pickle.dumps(near))


def instructions(path: Path, count: int = 400) -> None:
    """Alpaca's JSON list of instruction, input and output."""
    random.seed(count)
    path.parent.mkdir(parents=True, exist_ok=True)

    def text(least: int, most: int) -> str:
        return " ".join(f"w{random.randrange(4000)}" for _ in range(random.randrange(least, most)))

    rows = [{"instruction": text(5, 20), "input": text(0, 30), "output": text(10, 120)} for _ in range(count)]
    path.write_text(json.dumps(rows))


def book_pages(folder: Path) -> None:
    """Documents of sentences with blank lines between them (corpus.txt), and vocab.txt of word pieces."""
    random.seed(7)
    folder.mkdir(parents=True, exist_ok=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *(f"w{n}" for n in range(30517))]) + "\n")
    pages = (
        "\n".join(" ".join(f"w{random.randrange(30517)}" for _ in range(25)) for _ in range(60))
        for _ in range(60)
    )
    (folder / "corpus.txt").write_text("\n\n".join(pages) + "\n")


def tiny_pictures(folder: Path, count: int = 512) -> None:
    """PNG files of 32 x 32."""
    from PIL import Image

    random.seed(count)
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        Image.frombytes("RGB", (32, 32), random.randbytes(32 * 32 * 3)).save(folder / f"{index:05}.png")


def inception_moments(path: Path, size: int = 2048) -> None:
    """Mean and covariance of Inception's features, for scores."""
    numpy, _ = numpy_and_draw(size)
    path.parent.mkdir(parents=True, exist_ok=True)
    numpy.savez(path, mu=numpy.zeros(size), sigma=numpy.eye(size))


def large_pictures(folder: Path) -> None:
    """JPEG files of 480 x 480."""
    images(folder, 96, 480)


FIFTH_RECIPES: Dict[str, Callable[[Path], None]] = {
    "mixtures": mixtures,
    "words-as-pictures": words_as_pictures,
    "filmed-poses": filmed_poses,
    "depths": depths,
    "drives": drives,
    "volumes": volumes,
    "rated-items": rated_items,
    "movielens": movielens,
    "rollouts": rollouts,
    "electricity": electricity,
    "captions": captions,
    "few-shot-by-name": few_shot_by_name,
    "news": news,
    "speech-and-face": speech_and_face,
    "roads": roads,
    "citations": citations,
    "instructions": instructions,
    "book-pages": book_pages,
    "tiny-pictures": tiny_pictures,
    "inception-moments": inception_moments,
    "large-pictures": large_pictures,
}
