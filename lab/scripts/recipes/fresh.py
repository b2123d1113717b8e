"""Synthetic data for the second blind list: point clouds, series, rays, graphs, ratings, spectrograms."""

from __future__ import annotations

import importlib
import json
import math
import pickle
import random
import struct
from pathlib import Path
from typing import Any, Callable, Dict

from lab.scripts.recipes.files import images, numpy_and_draw


def folder_only(folder: Path) -> None:
    """A folder that a script expects to be there."""
    folder.mkdir(parents=True, exist_ok=True)


def forecast_table(path: Path, rows: int = 3000, columns: int = 21) -> None:
    """A CSV with a date an hour and numbers, the last named OT."""
    random.seed(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [str(number) for number in range(columns - 1)] + ["OT"]
    lines = ["date," + ",".join(names)]
    for hour in range(rows):
        day = f"2016-{1 + hour // 720 % 12:02}-{1 + hour // 24 % 28:02} {hour % 24:02}:00:00"
        lines.append(day + "," + ",".join(f"{random.gauss(0, 1):.3f}" for _ in names))
    path.write_text("\n".join(lines) + "\n")


def cloud_files(folder: Path) -> None:
    """ModelNet40 as HDF5: ply_data_train0.h5, ply_data_test0.h5 of 2,048 points a cloud."""
    h5py: Any = importlib.import_module("h5py")
    numpy, draw = numpy_and_draw(40)
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 160), ("test", 64)):
        with h5py.File(folder / f"ply_data_{part}0.h5", "w") as file:
            file["data"] = draw.random((count, 2048, 3), dtype="float32")
            file["label"] = (numpy.arange(count) % 40)[:, None].astype("uint8")


def cloud_texts(folder: Path) -> None:
    """ModelNet10 with normals as text: shape names, the lists, and a file of points a shape."""
    _, draw = numpy_and_draw(10)
    kinds = [f"kind{letter}" for letter in "abcdefghij"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "modelnet10_shape_names.txt").write_text("\n".join(kinds) + "\n")
    lists: Dict[str, list[str]] = {"train": [], "test": []}
    for kind in kinds:
        (folder / kind).mkdir(exist_ok=True)
        for number in range(8):
            name = f"{kind}_{number:04}"
            lists["train" if number < 6 else "test"].append(name)
            points = draw.random((2500, 6))
            rows = (",".join(f"{value:.4f}" for value in point) for point in points)
            (folder / kind / f"{name}.txt").write_text("\n".join(rows))
    for part, names in lists.items():
        (folder / f"modelnet10_{part}.txt").write_text("\n".join(names) + "\n")


def traffic(folder: Path) -> None:
    """METR-LA: train.npz, val.npz, test.npz of 207 sensors and the pickled adjacency beside them."""
    numpy, draw = numpy_and_draw(207)
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 640), ("val", 128), ("test", 128)):
        x, y = (draw.random((count, 12, 207, 2)) for _ in range(2))
        numpy.savez(folder / f"{part}.npz", x=x, y=y)
    graph = (draw.random((207, 207)) < 0.05).astype("float32")
    numpy.fill_diagonal(graph, 1)
    names = [str(number) for number in range(207)]
    content = pickle.dumps((names, {name: index for index, name in enumerate(names)}, graph))
    (folder / "adj_mx.pkl").write_bytes(content)


def chairs(folder: Path, count: int = 24) -> None:
    """FlyingChairs: two PPM images and a flow of 384 x 512 each."""
    _, draw = numpy_and_draw(384)
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(1, count + 1):
        for number in (1, 2):
            pixels = draw.integers(0, 256, (384, 512, 3), dtype="uint8").tobytes()
            (folder / f"{index:05}_img{number}.ppm").write_bytes(b"P6\n512 384\n255\n" + pixels)
        flow = draw.normal(0, 3, (384, 512, 2)).astype("float32")
        head = struct.pack("<fii", 202021.25, 512, 384)
        (folder / f"{index:05}_flow.flo").write_bytes(head + flow.tobytes())


def salient(folder: Path, count: int = 36) -> None:
    """Images im_aug/*.jpg and their masks gt_aug/*.png."""
    from PIL import Image

    images(folder / "im_aug", count, 360)
    (folder / "gt_aug").mkdir(exist_ok=True)
    for path in (folder / "im_aug").iterdir():
        mask = Image.new("L", (360, 360), 0)
        mask.paste(255, (60, 60, 240, 300))
        mask.save(folder / "gt_aug" / f"{path.stem}.png")


def skin(folder: Path) -> None:
    """train, valid, test of ISIC_n.jpg, and folders _GT with ISIC_n_segmentation.png."""
    from PIL import Image

    for part in ("train", "valid", "test"):
        images(folder / part, 16)
        (folder / f"{part}_GT").mkdir(exist_ok=True)
        for path in list((folder / part).iterdir()):
            path.rename(path.with_name(f"ISIC_{path.stem}.jpg"))
            name = f"ISIC_{path.stem}_segmentation.png"
            Image.new("L", (256, 256), 255).save(folder / f"{part}_GT" / name)


def grey_images(folder: Path, count: int = 24) -> None:
    """PNG files in shades of grey."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    random.seed(count)
    for index in range(count):
        small = Image.frombytes("L", (20, 20), random.randbytes(400))
        small.resize((180, 180)).save(folder / f"{index:03}.png")


def street(folder: Path) -> None:
    """KITTI's semantic benchmark: training/image_2 and training/semantic, as PNG."""
    from PIL import Image

    for name, mode in (("image_2", "RGB"), ("semantic", "L")):
        where = folder / "training" / name
        where.mkdir(parents=True, exist_ok=True)
        for index in range(40):
            one = Image.new(mode, (310, 94), 7 if mode == "L" else (90, 90, 20 + index))
            one.save(where / f"{index:06}_10.png")


def few_shot(folder: Path) -> None:
    """miniImageNet: images/ and train.csv, val.csv, test.csv (file name, class)."""
    images(folder / "images", 1, 84)
    one = (folder / "images" / "0000.jpg").read_bytes()
    for part, classes in (("train", 40), ("val", 8), ("test", 8)):
        lines = ["filename,label"]
        for kind in range(classes):
            for number in range(24):
                name = f"{part}{kind:03}{number:05}.jpg"
                (folder / "images" / name).write_bytes(one)
                lines.append(f"{name},{part}{kind:03}")
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")


def digits_as_files(folder: Path) -> None:
    """FOLDER/0/0.png ... FOLDER/9/31.png of 28 x 28."""
    from PIL import Image

    random.seed(28)
    for digit in range(10):
        (folder / str(digit)).mkdir(parents=True, exist_ok=True)
        for index in range(64):
            Image.frombytes("L", (28, 28), random.randbytes(784)).save(folder / str(digit) / f"{index}.png")


def listed_images(folder: Path) -> None:
    """Images and train_images.json with their paths."""
    images(folder / "pictures", 64, 256)
    paths = [str(path) for path in sorted((folder / "pictures").iterdir())]
    (folder / "train_images.json").write_text(json.dumps(paths))


def div2k(folder: Path) -> None:
    """DIV2K of 26 small images: DIV2K/DIV2K_train_HR and DIV2K_train_LR_bicubic/X2."""
    from PIL import Image

    random.seed(2)
    high, low = folder / "DIV2K" / "DIV2K_train_HR", folder / "DIV2K" / "DIV2K_train_LR_bicubic" / "X2"
    high.mkdir(parents=True, exist_ok=True)
    low.mkdir(parents=True, exist_ok=True)
    for index in range(1, 27):
        small = Image.frombytes("RGB", (16, 16), random.randbytes(768))
        small.resize((384, 384)).save(high / f"{index:04}.png")
        small.resize((192, 192)).save(low / f"{index:04}x2.png")


def scene(folder: Path, side: int = 200) -> None:
    """A Blender scene of NeRF: transforms_train.json, _val, _test and RGBA images."""
    from PIL import Image

    random.seed(side)
    for part, count in (("train", 12), ("val", 2), ("test", 2)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        frames = []
        for index in range(count):
            small = Image.frombytes("RGBA", (10, 10), random.randbytes(400))
            small.resize((side, side)).save(folder / part / f"r_{index}.png")
            turn = 2 * math.pi * index / count
            c, s = math.cos(turn), math.sin(turn)
            pose = [[c, 0, s, 4 * s], [0, 1, 0, 0], [-s, 0, c, 4 * c], [0, 0, 0, 1]]
            frames.append({"file_path": f"./{part}/r_{index}", "rotation": 0.01, "transform_matrix": pose})
        content = {"camera_angle_x": 0.69, "frames": frames}
        (folder / f"transforms_{part}.json").write_text(json.dumps(content))


def spectrograms(folder: Path, count: int = 120) -> None:
    """A vocoder's data: mel/*.npy of 80 bands, quant/*.npy of samples, dataset.pkl."""
    numpy, draw = numpy_and_draw(80)
    rows = []
    for part in ("mel", "quant"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for index in range(count):
        name, frames = f"LJ{index:04}", 60 + index % 20
        numpy.save(folder / "mel" / f"{name}.npy", draw.random((80, frames), dtype="float32"))
        numpy.save(folder / "quant" / f"{name}.npy", draw.integers(0, 512, frames * 275))
        rows.append((name, frames))
    (folder / "dataset.pkl").write_bytes(pickle.dumps(rows))


def molecules(path: Path, count: int = 600) -> None:
    """Graphs as text: their number; a line of nodes and class; a node's tag, degree and neighbours."""
    random.seed(count)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [str(count)]
    for index in range(count):
        nodes = random.randrange(20, 60)
        near: list[set[int]] = [set() for _ in range(nodes)]
        for one in range(1, nodes):
            for other in {one - 1, random.randrange(one)}:
                near[one].add(other)
                near[other].add(one)
        lines.append(f"{nodes} {index % 2}")
        lines += [f"{one % 7} {len(n)} " + " ".join(map(str, sorted(n))) for one, n in enumerate(near)]
    path.write_text("\n".join(lines) + "\n")


def planetoid(folder: Path) -> None:
    """Cora in Planetoid's files: ind.cora.x, tx, allx, y, ty, ally, graph, test.index."""
    from scipy import sparse

    numpy, draw = numpy_and_draw(2708)
    folder.mkdir(parents=True, exist_ok=True)
    nodes, tests, features = 2708, 1000, 1433
    x = sparse.csr_matrix((draw.random((nodes, features)) < 0.02).astype("float32"))
    y = numpy.eye(7, dtype="int32")[numpy.arange(nodes) % 7]
    graph = {node: [int(n) for n in draw.integers(0, nodes, 2)] for node in range(nodes)}
    rest = nodes - tests
    parts = {"x": x[:140], "allx": x[:rest], "tx": x[rest:], "y": y[:140], "ally": y[:rest], "ty": y[rest:]}
    for name, content in {**parts, "graph": graph}.items():
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(content, protocol=2))
    (folder / "ind.cora.test.index").write_text("\n".join(map(str, range(rest, nodes))) + "\n")


def reviews(folder: Path) -> None:
    """train.csv and test.csv: a class from 1 and a text."""
    random.seed(5)
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 1500), ("test", 300)):
        lines = [
            f'"{1 + index % 2}","' + " ".join(f"word{random.randrange(900)}" for _ in range(110)) + '"'
            for index in range(count)
        ]
        (folder / f"{part}.csv").write_text("\n".join(lines) + "\n")


MORE_RECIPES: Dict[str, Callable[[Path], None]] = {
    "folder": folder_only,
    "forecast-table": forecast_table,
    "cloud-files": cloud_files,
    "cloud-texts": cloud_texts,
    "traffic": traffic,
    "chairs": chairs,
    "salient": salient,
    "skin": skin,
    "grey-images": grey_images,
    "street": street,
    "few-shot": few_shot,
    "digits-as-files": digits_as_files,
    "listed-images": listed_images,
    "div2k": div2k,
    "scene": scene,
    "spectrograms": spectrograms,
    "molecules": molecules,
    "planetoid": planetoid,
    "reviews": reviews,
}
